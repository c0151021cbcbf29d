import assert from "node:assert/strict";
import { test } from "node:test";

import { attachment, LARGEST } from "./attachments";

const file = (name: string, content: string | number[], type = ""): File =>
  new File([typeof content === "string" ? content : new Uint8Array(content)], name, { type });

test("a text is a resource whose address has its name", async () => {
  const { name, part } = await attachment(file("a b+ä@1.rs", "fn a() {}", "application/x-anything"));
  assert.equal(name, "a b+ä@1.rs");
  const uri = "attachment:a%20b+%C3%A4@1.rs";
  assert.deepEqual(part, { type: "resource", resource: { uri, text: "fn a() {}" } });
});

test("other bytes are a resource in base64", async () => {
  const zero = await attachment(file("d.bin", [0, 1, 97]));
  assert.deepEqual(zero.part, { type: "resource", resource: { uri: "attachment:d.bin", blob: "AAFh" } });
  const invalid = await attachment(file("e.txt", [0xff, 0xfe], "text/plain"));
  assert.deepEqual(invalid.part, { type: "resource", resource: { uri: "attachment:e.txt", blob: "//4=" } });
});

test("the first bytes tell an image, whatever its name and type", async () => {
  const images: [number[], string][] = [
    [[0x89, 0x50, 0x4e, 0x47, 0x0d], "image/png"],
    [[0xff, 0xd8, 0xff, 0xe0], "image/jpeg"],
    [[0x47, 0x49, 0x46, 0x38, 0x39], "image/gif"],
    [[...Buffer.from("RIFF\n\0\xffxWEBP", "latin1")], "image/webp"],
  ];
  for (const [content, mimeType] of images) {
    const { part } = await attachment(file("c.txt", content, "text/plain"));
    assert.deepEqual(part, {
      type: "image",
      data: Buffer.from(content).toString("base64"),
      mimeType,
      uri: "attachment:c.txt",
    });
  }
  const { part } = await attachment(file("f.png", "no image", "image/png"));
  assert.equal(part.type, "resource");
});

test("a file of more than 8 MiB is refused, and one of 8 MiB is not", async () => {
  await assert.rejects(attachment(file("g.log", "x".repeat(LARGEST + 1))), /g\.log is larger than 8 MiB/);
  assert.equal((await attachment(file("h.log", "x".repeat(LARGEST)))).part.type, "resource");
});
