/* Formats times and sizes for people. */

/** 75.5 as `1:15`, 3675 as `1:01:15`. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const rest = two(whole % 60);
  return hours ? `${hours}:${two(minutes)}:${rest}` : `${minutes}:${rest}`;
}

/** Remaining time, as precise as an estimate can be. */
export function roughly(seconds) {
  if (seconds < 10) return "a few seconds";
  if (seconds < 45) return `about ${Math.round(seconds / 10) * 10} seconds`;
  if (seconds < 90) return "about a minute";
  if (seconds < 5400) return `about ${Math.round(seconds / 60)} minutes`;
  return `about ${Math.round(seconds / 3600)} hours`;
}

export function size(bytes) {
  if (bytes < 1e3) return count(bytes, "byte");
  if (bytes < 1e6) return `${Math.round(bytes / 1e3)} KB`;
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(1)} GB`;
  return `${(bytes / 1e6).toFixed(bytes < 1e8 ? 1 : 0)} MB`;
}

export const stemOf = (name) => name.replace(/\.[^.]*$/, "");

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
