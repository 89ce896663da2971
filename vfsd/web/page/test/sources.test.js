import assert from "node:assert/strict";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { findings } from "../lint.js";

test("the sources of the page make no markup or code from text", () => {
  const here = dirname(fileURLToPath(import.meta.url));
  assert.deepEqual(findings(join(here, "..", "src")), []);
});
