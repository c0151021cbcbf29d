/**
 * Files of the person as parts of a prompt: the same parts as those of `agentctl prompt --file` for another machine.
 *
 * A browser does not tell where a file is. So its address has only its name, and a large file cannot be a link.
 */
import { texts } from "../texts";
import type { PromptPart } from "./api";

export interface Attachment {
  name: string;
  part: PromptPart;
}

/** Most bytes of a file. A larger one is better named by its path, since the agent works on the machine of agentd. */
export const LARGEST = 8 << 20;

/** Reads a file: an image that models take as such, a text as a text, and anything else as bytes. */
export async function attachment(file: File): Promise<Attachment> {
  if (file.size > LARGEST) throw new Error(texts.input.tooLarge(file.name, LARGEST >> 20));
  const bytes = new Uint8Array(await file.arrayBuffer());
  const uri = `attachment:${escaped(file.name)}`;
  const mimeType = imageType(bytes);
  if (mimeType !== undefined) return { name: file.name, part: { type: "image", data: base64(bytes), mimeType, uri } };
  const text = asText(bytes);
  const resource = text === undefined ? { uri, blob: base64(bytes) } : { uri, text };
  return { name: file.name, part: { type: "resource", resource } };
}

/** Returns a name as part of an address. Only the characters stay that RFC 3986 allows in a path. */
function escaped(name: string): string {
  return encodeURIComponent(name).replace(/%(24|26|2B|2C|3A|3B|3D|40)/g, (sign) => decodeURIComponent(sign));
}

/** First bytes of the images that models take. */
const IMAGES: readonly (readonly [type: string, begins: RegExp])[] = [
  ["image/png", /^\x89PNG/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
];

/** Returns the media type of an image by its first bytes. Names and the types of browsers can be wrong. */
function imageType(bytes: Uint8Array): string | undefined {
  const begin = String.fromCharCode(...bytes.subarray(0, 12));
  return IMAGES.find(([, begins]) => begins.test(begin))?.[0];
}

function asText(bytes: Uint8Array): string | undefined {
  if (bytes.includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}
