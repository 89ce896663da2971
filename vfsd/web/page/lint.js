// Names of videos, tags and labels come from files.  Text nodes are the only way into the page:
// what turns text into markup or code is refused.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** @type {[RegExp, string][]} */
const RULES = [
  [/\b(inner|outer)HTML\b/, "markup from text"],
  [/\bdangerouslySetInnerHTML\b/, "markup from text"],
  [/\binsertAdjacentHTML\b|\bdocument\.write\b|\bcreateContextualFragment\b/, "markup from text"],
  [/\bDOMParser\b|\bsrcdoc\b|\bsetHTMLUnsafe\b/, "markup from text"],
  [/\beval\s*\(|\bnew\s+Function\b|\bset(Timeout|Interval)\s*\(\s*["'`]/, "code from text"],
  [/javascript:/i, "code from text"],
  [/["'`](https?:)?\/\/[a-z0-9]/i, "an address outside of the server"],
];

/** The forbidden constructs in the sources below `folder`, as `path:line: reason`.
 * @param {string} folder */
export function findings(folder) {
  const found = [];
  for (const name of readdirSync(folder, { recursive: true, encoding: "utf8" }).sort()) {
    if (!/\.(jsx?|css|html)$/.test(name)) continue;
    const lines = readFileSync(join(folder, name), "utf8").split("\n");
    for (const [index, line] of lines.entries()) {
      for (const [rule, reason] of RULES) {
        if (rule.test(line)) found.push(`${name}:${index + 1}: ${reason}: ${line.trim()}`);
      }
    }
  }
  return found;
}
