// Bundles the extension into one file, and puts beside it the server as a wheel with its hashed requirements.
import { execFileSync } from "node:child_process";
import { cp, mkdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = new URL("../../", import.meta.url);
const server = new URL("server/", import.meta.url);
const python = process.env.PYTHON ?? (process.platform === "win32" ? "python" : "python3");

await rm(server, { recursive: true, force: true });
await mkdir(server);
for (const name of ["requirements.txt", "requirements-mcp.txt"]) {
  await cp(new URL(name, import.meta.url), new URL(name, server));
}
const wheel = ["-I", "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir"];
execFileSync(python, [...wheel, fileURLToPath(server), fileURLToPath(root)], { stdio: "inherit" });

await cp(new URL("LICENSE", root), new URL("LICENSE", import.meta.url));

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
  loader: { ".client.js": "text" },
  logLevel: "warning",
});
