"use strict";
// Gives textlint the comments of a Rust file, or of an interface (WIT), as Markdown. Each line keeps its number: a line
// of code becomes a blank line. Doc comments (`///`, `//!`) stay unchanged. Plain comments become block quotes, in
// which a sentence may begin with a small letter: many are notes about one line. A comment behind code is not read.
const { parse } = require("@textlint/markdown-to-ast");

const comment = /^\s*\/\/([/!]?)(?!\/) ?(.*)$/;

function markdown(line) {
  const found = comment.exec(line);
  if (!found) return "";
  return found[1] === "" ? `> ${found[2]}` : found[2];
}

module.exports = {
  Processor: class {
    availableExtensions() {
      return [".rs", ".wit"];
    }
    processor() {
      return {
        preProcess(source) {
          const text = source.split(/\r?\n/).map(markdown).join("\n");
          return { text, ast: parse(text) };
        },
        postProcess(messages, filePath) {
          return { messages, filePath: filePath || "<rust>" };
        },
      };
    }
  },
};
