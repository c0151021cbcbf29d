"use strict";
// Refuses a sentence of more words than `max`. The sentence may continue over several lines, which
// textlint-rule-en-max-word-count counts as several sentences. A span of inline code counts as one word. Cells of
// tables are not counted.
const { splitAST, Syntax } = require("sentence-splitter");

function words(node) {
  switch (node.type) {
    case "Code":
      return "code";
    case "Str":
      return node.value;
    case "Break":
      return " ";
    default:
      return (node.children || []).map(words).join("");
  }
}

module.exports = ({ Syntax: Markdown, RuleError, report }, { max }) => ({
  [Markdown.Paragraph](paragraph) {
    for (const sentence of splitAST(paragraph).children.filter((node) => node.type === Syntax.Sentence)) {
      // A dash or another sign between blanks is no word.
      const count = words(sentence).split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
      if (count > max && sentence.children.length > 0) {
        report(sentence.children[0], new RuleError(`the sentence has ${count} words, ${count - max} more than ${max}`));
      }
    }
  },
});
