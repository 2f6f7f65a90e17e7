// Parses T-SQL from stdin by ANTLR's grammar of it, and prints one line for each error and the names of the statements.
const { createRequire } = require("node:module");
const path = require("node:path");
const lib = createRequire(path.join(process.argv[2], "node_modules", "x.js"));
lib("antlr4ts/Lexer"); // first: the index of antlr4ts has a circle
const { CharStreams } = lib("antlr4ts/CharStreams");
const { CommonTokenStream } = lib("antlr4ts/CommonTokenStream");
const { TSqlLexer } = lib("antlr4ts-sql/dist/src/grammar-output/tsql/TSqlLexer");
const { TSqlParser } = lib("antlr4ts-sql/dist/src/grammar-output/tsql/TSqlParser");

const text = require("node:fs").readFileSync(0, "utf8");
const errors = [];
const listener = { syntaxError: (_recognizer, _symbol, line, column, message) => errors.push(`${line}:${column} ${message}`) };
const lexer = new TSqlLexer(CharStreams.fromString(text.toUpperCase())); // the grammar has its words in upper case
const parser = new TSqlParser(new CommonTokenStream(lexer));
for (const part of [lexer, parser]) {
  part.removeErrorListeners();
  part.addErrorListener(listener);
}
const tree = parser.tsql_file();
const found = new Set();
(function walk(node) {
  found.add(node.constructor.name.replace(/Context$/, ""));
  for (let i = 0; i < node.childCount; i++) walk(node.getChild(i));
})(tree);
console.log(JSON.stringify({ errors, found: [...found].sort() }));
