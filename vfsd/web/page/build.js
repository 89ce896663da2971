// Builds the page into vfsd/web/static.  `node build.js [OUT]`
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { findings } from "./lint.js";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "static");

const found = findings(join(here, "src"));
if (found.length > 0) {
  console.error(found.join("\n"));
  process.exit(1);
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });

const common = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  format: /** @type {const} */ ("esm"),
  target: "es2022",
  charset: /** @type {const} */ ("utf8"),
  legalComments: /** @type {const} */ ("none"),
  logLevel: /** @type {const} */ ("warning"),
};

await build({
  ...common,
  entryPoints: { app: "src/main.jsx" },
  outdir: out,
  jsx: "automatic",
  jsxImportSource: "preact",
  external: ["./hls.js"],
});
await build({ ...common, entryPoints: { hls: "hls.js/light" }, outdir: out });

copyFileSync(join(here, "src", "index.html"), join(out, "index.html"));
copyFileSync(join(here, "src", "icon.svg"), join(out, "icon.svg"));
// The licences of the packages in app.js and hls.js ask for their texts to be passed on.
const packages = ["preact", "@preact/signals", "@preact/signals-core", "hls.js"];
const licences = packages.map((name) => {
  const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
  return `${name}\n\n${text}\n`;
});
writeFileSync(join(out, "LICENSES.txt"), licences.join(`\n${"-".repeat(72)}\n\n`));
