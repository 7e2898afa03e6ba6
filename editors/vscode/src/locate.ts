import { type ExecFileOptions, execFile } from "node:child_process";
import { constants, promises as fs } from "node:fs";
import { homedir } from "node:os";
import { delimiter, isAbsolute, join, relative, sep } from "node:path";
import { promisify } from "node:util";
import { type ExtensionContext, workspace } from "vscode";
import { SECTION } from "./settings";

const WINDOWS = process.platform === "win32";
const OLDEST_PYTHON = [3, 11] as const;

/** Run a program by its absolute path, in the home folder, because programs in the open folder are not trusted. */
export function run(program: string, args: string[], options: ExecFileOptions = {}): Promise<{ stdout: string }> {
  return promisify(execFile)(program, args, { ...options, cwd: homedir(), encoding: "utf8" });
}

/** The command that starts the server, and where its program was found. */
export interface ServerCommand {
  command: string;
  args: string[];
  origin: "setting" | "PATH" | "managed environment" | "Python";
}

/** Return the server's command, or undefined if it is not installed. Throws if the configured path is invalid. */
export async function findServer(context: ExtensionContext): Promise<ServerCommand | undefined> {
  const named = workspace.getConfiguration(SECTION).get<string>("server.path", "").trim();
  if (named) return fromSetting(named);
  const onPath = await onPathVariable("token-sidecar");
  if (onPath) return { command: onPath, args: ["serve"], origin: "PATH" };
  const managed = managedProgram(context, "token-sidecar");
  if (await executable(managed)) return { command: managed, args: ["serve"], origin: "managed environment" };
  return fromPython();
}

async function fromSetting(named: string): Promise<ServerCommand> {
  const path = named.startsWith("~") ? join(homedir(), named.slice(1)) : named;
  const command = isAbsolute(path) ? path : await onPathVariable(path);
  if (!command || !(await executable(command))) {
    throw new Error(`the setting tokenSidecar.server.path is not a program: ${named}`);
  }
  return { command, args: ["serve"], origin: "setting" };
}

async function fromPython(): Promise<ServerCommand | undefined> {
  const python = await findPython();
  if (!python) return undefined;
  // Without -P, Python would import a `sidecar/` folder in the workspace.
  const args = ["-P", "-m", "sidecar"];
  const { stdout } = await run(python, [...args, "--version"], { timeout: 10_000 }).catch(() => ({ stdout: "" }));
  if (!stdout.includes("token-sidecar")) return undefined;
  return { command: python, args: [...args, "serve"], origin: "Python" };
}

/** Return the path of Python 3.11 or later on PATH, or undefined if there is none. */
export async function findPython(): Promise<string | undefined> {
  for (const name of ["python3", "python"]) {
    const path = await onPathVariable(name);
    if (path && (await recentEnough(path))) return path;
  }
  return undefined;
}

async function recentEnough(python: string): Promise<boolean> {
  const test = `import sys; sys.exit(sys.version_info < (${OLDEST_PYTHON.join(", ")}))`;
  return run(python, ["-I", "-c", test], { timeout: 10_000 }).then(
    () => true,
    () => false,
  );
}

/** Return the folder of the environment that "Install Server" creates for this version of the extension. */
export function managedFolder(context: ExtensionContext): string {
  const { version } = context.extension.packageJSON as { version: string };
  return join(context.globalStorageUri.fsPath, `server-${version}`);
}

/** Return a program's path in the managed environment. */
export function managedProgram(context: ExtensionContext, name: string): string {
  return join(managedFolder(context), WINDOWS ? "Scripts" : "bin", WINDOWS ? `${name}.exe` : name);
}

/** Find a program on PATH. Relative folders and the open folders are ignored. */
async function onPathVariable(name: string): Promise<string | undefined> {
  const open = await openFolders();
  const theirs = (path: string): boolean => open.some((folder) => inside(path, folder));
  for (const folder of (process.env["PATH"] ?? "").split(delimiter)) {
    if (!isAbsolute(folder)) continue;
    const path = join(await realpath(folder), WINDOWS ? `${name}.exe` : name);
    // Check both the path and its target. A virtual environment's Python is a link, and loads modules from the link's folder.
    if ((await executable(path)) && !theirs(path) && !theirs(await realpath(path))) return path;
  }
  return undefined;
}

/**
 * Return the open folders. A folder that contains the home folder is left out, because it cannot be a cloned
 * repository.
 */
async function openFolders(): Promise<string[]> {
  const home = await realpath(homedir());
  const folders = await Promise.all((workspace.workspaceFolders ?? []).map(({ uri }) => realpath(uri.fsPath)));
  return folders.filter((folder) => !inside(home, folder));
}

function inside(path: string, folder: string): boolean {
  const way = relative(folder, path);
  return way !== ".." && !way.startsWith(`..${sep}`) && !isAbsolute(way);
}

async function realpath(path: string): Promise<string> {
  return fs.realpath(path).catch(() => path);
}

async function executable(path: string): Promise<boolean> {
  return fs.access(path, constants.X_OK).then(
    async () => (await fs.stat(path)).isFile(),
    () => false,
  );
}
