// @ts-check
// Two pictures on one plane, as transforms of CSS.

/** @param {number[][]} matrix 3 x 3 @param {number} x @param {number} y @returns {[number, number]} */
export function project(matrix, x, y) {
  const [a, b, c] = matrix.map((row) => row[0] * x + row[1] * y + row[2]);
  return [a / c, b / c];
}

/** A 3 x 3 matrix as `matrix3d()`.
 * @param {number[][]} matrix */
function css([a, b, c]) {
  return `matrix3d(${[a[0], b[0], 0, c[0], a[1], b[1], 0, c[1], 0, 0, 1, 0, a[2], b[2], 0, c[2]].map((value) => value.toFixed(10)).join(",")})`;
}

/** @param {number[][]} one @param {number[][]} other @returns {number[][]} */
function product(one, other) {
  return one.map((row) => [0, 1, 2].map((column) => row.reduce((sum, value, index) => sum + value * other[index][column], 0)));
}

/** Where two pictures lie on a stage of a width: transforms about the top left corner, and the height.
 * @param {number[][]} matrix from pixels of the right picture to those of the left one
 * @param {[number, number]} left size in pixels @param {[number, number]} right size in pixels
 * @param {number} width of the stage
 * @returns {{left: string, right: string, height: number}} */
export function placed(matrix, left, right, width) {
  const corners = [[0, 0], [right[0], 0], [right[0], right[1]], [0, right[1]]].map(([x, y]) => project(matrix, x, y));
  // A side that is warped far away would make both pictures tiny.
  const least = [-1.5 * left[0], -1.5 * left[1]];
  const most = [2.5 * left[0], 2.5 * left[1]];
  const xs = [0, left[0], ...corners.map(([x]) => Math.min(Math.max(x, least[0]), most[0]))];
  const ys = [0, left[1], ...corners.map(([, y]) => Math.min(Math.max(y, least[1]), most[1]))];
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  const scale = width / (Math.max(...xs) - x);
  const place = [[scale, 0, -x * scale], [0, scale, -y * scale], [0, 0, 1]];
  return { left: css(place), right: css(product(place, matrix)), height: (Math.max(...ys) - y) * scale };
}
