// @ts-check
import { Empty } from "../ui/basics.jsx";

/** @param {import("../routes.js").PageProps} _props */
export function LibraryPage(_props) {
  return <Empty icon="library" title="No videos yet" />;
}
