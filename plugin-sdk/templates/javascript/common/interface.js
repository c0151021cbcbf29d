// What the interface needs and the language has not: the text in wit/deps/ in JavaScript's words.
//
// A record is an object, its names in camelCase; an option is the value or null, and may be left out of what is given; a variant is
// { tag, val }; an enum is a string; a list<u8> is a Uint8Array; every number is a number. A failure is thrown: the host's calls throw
// an Error whose `payload` is the variant, and what is thrown here is the variant itself or such an Error.

/** A text as the bytes that it is in UTF-8. The engine in the component has no TextEncoder. */
export function bytes(text) {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (character) => character.charCodeAt(0));
}

/** Several pieces of bytes as one. */
export function join(...pieces) {
  return Uint8Array.from(pieces.flatMap((piece) => [...piece]));
}

/** Bytes without the ASCII white space around them. */
export function trimmed(value) {
  const white = (byte) => byte === 32 || (byte >= 9 && byte <= 13);
  let [begin, end] = [0, value.length];
  while (begin < end && white(value[begin])) begin += 1;
  while (end > begin && white(value[end - 1])) end -= 1;
  return value.slice(begin, end);
}

/** A setting that is wrong, as the person who wrote it is told. */
export function wrong(key, message) {
  return { tag: "configuration", val: { key, message } };
}

/** What the host says of a call that it could not do, as its variant. */
export function failure(error) {
  return error instanceof Error && "payload" in error ? error.payload : error;
}

/** A mistake in this program ends the call; its text goes to the journal, since the crash itself says nothing. */
export function told(write, work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof Error && !("payload" in error)) write("error", `${error.name}: ${error.message}\n${error.stack}`);
    throw error;
  }
}
