// Helpers for the interface, whose text is in wit/deps/, in JavaScript.
//
// The types of the interface in JavaScript:
// - A record is an object with names in camelCase.
// - An option is the value or null, and may be left out of results.
// - A variant is { tag, val }, and an enum is a string.
// - A list<u8> is a Uint8Array, and every number is a number.
// - A failure is thrown. The host's calls throw an Error whose `payload` is the variant. A plugin throws the
//   variant or such an Error.

/** Encodes a text as UTF-8. The JavaScript engine of the component has no TextEncoder. */
export function bytes(text) {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (character) => character.charCodeAt(0));
}

/** Concatenates several byte arrays. */
export function join(...pieces) {
  return Uint8Array.from(pieces.flatMap((piece) => [...piece]));
}

/** Returns the bytes without leading and trailing ASCII white space. */
export function trimmed(value) {
  const white = (byte) => byte === 32 || (byte >= 9 && byte <= 13);
  let [begin, end] = [0, value.length];
  while (begin < end && white(value[begin])) begin += 1;
  while (end > begin && white(value[end - 1])) end -= 1;
  return value.slice(begin, end);
}

/** Makes the failure for a wrong setting. */
export function wrong(key, message) {
  return { tag: "configuration", val: { key, message } };
}

/** Returns the variant of a host's failure. */
export function failure(error) {
  return error instanceof Error && "payload" in error ? error.payload : error;
}

/** Runs `work` and logs an uncaught error, because the crash itself carries no message. */
export function told(write, work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof Error && !("payload" in error)) {
      write("error", `${error.name}: ${error.message}\n${error.stack}`);
    }
    throw error;
  }
}
