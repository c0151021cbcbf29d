/** Files of the person as parts of a prompt. */
import { texts } from "../texts";
import type { PromptPart } from "./api";

export interface Attachment {
  name: string;
  part: PromptPart;
}

/** Most bytes of a file. A larger one is better named by its path, since the agent works on the same machine. */
const LARGEST = 4 << 20;

/** Reads a file: an image or a sound as such, a text as a text, and anything else as bytes. */
export async function attachment(file: File): Promise<Attachment> {
  if (file.size > LARGEST) throw new Error(texts.input.tooLarge(file.name));
  const bytes = new Uint8Array(await file.arrayBuffer());
  const mimeType = file.type || "application/octet-stream";
  const uri = `file:///${encodeURIComponent(file.name)}`;
  if (/^(image\/(png|jpeg|gif|webp)|audio\/)/.test(mimeType)) {
    const type = mimeType.startsWith("image/") ? "image" : "audio";
    return { name: file.name, part: { type, data: base64(bytes), mimeType } };
  }
  const text = asText(bytes);
  const resource =
    text === undefined ? { uri, mimeType, blob: base64(bytes) } : { uri, mimeType: file.type || "text/plain", text };
  return { name: file.name, part: { type: "resource", resource } };
}

function asText(bytes: Uint8Array): string | undefined {
  if (bytes.includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}
