import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { findings } from "../lint.js";

test("markup, code and foreign addresses in the sources are found", () => {
  const folder = mkdtempSync(join(tmpdir(), "lint-"));
  const forbidden = [
    "element.innerHTML = name;",
    "<div dangerouslySetInnerHTML={{ __html: name }} />",
    'element.insertAdjacentHTML("beforeend", name);',
    "eval(text)",
    'new Function("return 1")',
    'setTimeout("run()", 1)',
    'link.href = "javascript:run()"',
    'fetch("https://example.org/a.js")',
    'image.src = "//example.org/a.png"',
  ];
  const allowed = ['element.textContent = name;', 'go("#/search")', "setTimeout(() => run(), 1)"];
  try {
    writeFileSync(join(folder, "a.jsx"), [...forbidden, ...allowed].join("\n"));
    const lines = findings(folder).map((line) => Number(line.split(":")[1]));
    assert.deepEqual(lines, forbidden.map((_, index) => index + 1));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
