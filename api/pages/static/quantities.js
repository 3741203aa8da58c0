// Numbers as people read them. The wire carries base units; GiB is 2^30 bytes.

export const GIB = 2 ** 30;
const SIGNIFICANT_DIGITS = 3;

const MIB = 2 ** 20;
// Less than this would be 0.0 GiB.
const LEAST_GIB_BYTES = 0.05 * GIB;

/** Return bytes in GiB, little of them in MiB. */
export function gib(bytes) {
  if (bytes === 0) return "0";
  if (bytes < 0) return `−${gib(-bytes)}`;
  if (bytes < LEAST_GIB_BYTES) return `${Number((bytes / MIB).toPrecision(SIGNIFICANT_DIGITS))} MiB`;
  const digits = bytes < GIB ? 2 : 1;
  return `${(bytes / GIB).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} GiB`;
}

export const percent = (fraction) => `${(100 * fraction).toFixed(1)} %`;
export const whole = (count) => Math.round(count).toLocaleString("en");

// Seconds that a unit has, and from how many on it is used: 75 s say more than 1.25 min, 25 h more than 1.04 d.
const DURATIONS = [[86400, "d", 172800], [3600, "h", 3600], [60, "min", 120], [1, "s", 1], [1e-3, "ms", 0]];
const durationUnit = (seconds) => DURATIONS.find(([, , least]) => Math.abs(seconds) >= least);

/** Return a duration in the largest unit that it fills. */
export function duration(seconds) {
  if (seconds === 0) return "0";
  const [size, unit] = durationUnit(seconds);
  return `${short(seconds / size)} ${unit}`;
}

/** Return an axis of durations up to the longest one, all told and round in its unit. */
export function durationAxis(longest) {
  const [size, name] = durationUnit(longest);
  return { unit: size, format: (seconds) => (seconds ? `${short(seconds / size)} ${name}` : "0") };
}

/** Return a number in a few digits, with k, M, G or T. */
export function short(number) {
  const sizes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, letter] = sizes.find(([least]) => Math.abs(number) >= least) ?? [1, ""];
  return `${Number((number / size).toPrecision(SIGNIFICANT_DIGITS))}${letter}`;
}

/** Return a count of parameters as models' names have it: 8.03B. */
export const billions = (number) => short(number).replace("G", "B");

/** Return a count of any size: what has no letter above as a power of ten. */
export function count(number) {
  if (number < 1e15) return short(number);
  const power = Math.floor(Math.log10(number));
  return `${Number((number / 10 ** power).toPrecision(SIGNIFICANT_DIGITS))} × 10${[...String(power)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}

/** Return a wire name as words. */
export const words = (name) => String(name).replaceAll("_", " ");

/** Return the words of a quantity whose unit stands beside it. */
export const quantityWords = (name) => words(name.replace(/_(bytes|seconds)$/, ""));

/** Return how many there are of something, "s" added where it is not one. */
export const counted = (number, thing) => `${whole(number)} ${thing}${number === 1 ? "" : "s"}`;

/** Return a signed quantity, with a true minus. */
export const signed = (value, format) => `${value < 0 ? "−" : "+"}${format(Math.abs(value))}`;
