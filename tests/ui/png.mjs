/** Pictures in PNG: smaller ones with a palette, and how much two of them differ. A blank page does the counting. */
import { deflateSync } from "node:zlib";

/** Difference of a colour's channel from which a pixel counts as different. */
const TONE = 48;

const encoded = (png) => png.toString("base64");

/** Defines the functions that a blank page needs for pictures. */
async function prepare(page) {
  await page.evaluate(() => {
    window.pixels = async (png) => {
      const bytes = Uint8Array.from(atob(png), (sign) => sign.charCodeAt(0));
      const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
      const { width, height } = picture;
      const context = new OffscreenCanvas(width, height).getContext("2d");
      context.drawImage(picture, 0, 0);
      return { width, height, data: context.getImageData(0, 0, width, height).data };
    };
  });
}

/** Returns the share of pixels by which two pictures differ. Pictures of different sizes differ in every pixel. */
export async function difference(page, one, other) {
  await prepare(page);
  return page.evaluate(
    async ([one, other, tone]) => {
      const [first, second] = [await window.pixels(one), await window.pixels(other)];
      if (first.width !== second.width || first.height !== second.height) return 1;
      let count = 0;
      for (let at = 0; at < first.data.length; at += 4) {
        const differs = (channel) => Math.abs(first.data[at + channel] - second.data[at + channel]) > tone;
        if (differs(0) || differs(1) || differs(2)) count += 1;
      }
      return count / (first.width * first.height);
    },
    [encoded(one), encoded(other), TONE],
  );
}

/** Returns a picture with its 256 most frequent colours. Other colours become the nearest of them. */
export async function small(page, png) {
  await prepare(page);
  const { width, height, palette, rows } = await page.evaluate(async (png) => {
    const { width, height, data } = await window.pixels(png);
    const colour = (at) => (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
    const counts = new Map();
    for (let at = 0; at < data.length; at += 4) counts.set(colour(at), (counts.get(colour(at)) ?? 0) + 1);
    const palette = [...counts].sort((one, other) => other[1] - one[1] || one[0] - other[0]).slice(0, 256);
    const colours = palette.map(([value]) => value);
    const places = new Map(colours.map((value, place) => [value, place]));
    const channels = (value) => [value >> 16, (value >> 8) & 255, value & 255];
    const nearest = (value) => {
      const distances = colours.map((known) =>
        channels(known).reduce((sum, channel, index) => sum + (channel - channels(value)[index]) ** 2, 0),
      );
      return distances.indexOf(Math.min(...distances));
    };
    // A row of a picture begins with the number of its filter, 0.
    const rows = new Uint8Array((width + 1) * height);
    for (let at = 0; at < width * height; at++) {
      const value = colour(4 * at);
      if (!places.has(value)) places.set(value, nearest(value));
      rows[Math.floor(at / width) * (width + 1) + (at % width) + 1] = places.get(value);
    }
    let text = "";
    for (let at = 0; at < rows.length; at += 32_768) text += String.fromCharCode(...rows.subarray(at, at + 32_768));
    return { width, height, palette: colours.flatMap(channels), rows: btoa(text) };
  }, encoded(png));
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  // Eight bits for each pixel, with a palette.
  head.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", head),
    chunk("PLTE", Buffer.from(palette)),
    chunk("IDAT", deflateSync(Buffer.from(rows, "base64"), { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

function chunk(name, content) {
  const body = Buffer.concat([Buffer.from(name, "latin1"), content]);
  const whole = Buffer.alloc(body.length + 8);
  whole.writeUInt32BE(content.length, 0);
  whole.set(body, 4);
  whole.writeUInt32BE(checksum(body), body.length + 4);
  return whole;
}

/** The checksum CRC-32 of PNG. */
function checksum(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  }
  return (sum ^ 0xffffffff) >>> 0;
}
