// Bundles the extension into one file, and puts a copy of the server beside it.
import { cp, rm } from "node:fs/promises";
import { build } from "esbuild";

const root = new URL("../../", import.meta.url);
const server = new URL("server/", import.meta.url);

await rm(server, { recursive: true, force: true });
for (const part of ["sidecar", "pyproject.toml", "README.md"]) {
  await cp(new URL(part, root), new URL(part, server), {
    recursive: true,
    filter: (source) => !source.endsWith("__pycache__"),
  });
}

await build({
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  external: ["vscode"],
  minify: true,
  sourcemap: false,
  logLevel: "warning",
});
