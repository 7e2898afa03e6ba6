import { promises as fs } from "node:fs";
import { join } from "node:path";
import { type ExtensionContext, type LogOutputChannel, ProgressLocation, window } from "vscode";
import { findPython, managedFolder, managedProgram, run } from "./locate";

const PIP = ["-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"];

/** Install the bundled wheel and its dependencies into a private environment. Dependencies are verified by hash. */
export async function installServer(context: ExtensionContext, log: LogOutputChannel): Promise<void> {
  const python = await findPython();
  if (!python) {
    throw new Error("no Python 3.11 or later was found on PATH: install Python and try again");
  }
  const folder = managedFolder(context);
  const carried = join(context.extensionPath, "server");
  const wheels = (await fs.readdir(carried)).filter((name) => name.endsWith(".whl")).map((name) => join(carried, name));
  const needed = ["--require-hashes", "--only-binary", ":all:", "--requirement", join(carried, "requirements.txt")];
  const title = "Token Sidecar: installing its server";
  await window.withProgress({ location: ProgressLocation.Notification, title }, async (progress) => {
    try {
      await fs.rm(folder, { recursive: true, force: true });
      progress.report({ message: "creating its environment", increment: 5 });
      await step(log, python, ["-I", "-m", "venv", folder]);
      progress.report({ message: "downloading its dependencies", increment: 25 });
      const own = managedProgram(context, "python");
      await step(log, own, [...PIP, ...needed]);
      progress.report({ message: "installing it", increment: 60 });
      await step(log, own, [...PIP, "--no-deps", "--no-index", ...wheels]);
    } catch (error) {
      await fs.rm(folder, { recursive: true, force: true });
      throw error;
    }
  });
}

/** Add the MCP server's dependencies to the private environment. They are verified by hash. */
export async function installMcp(context: ExtensionContext, log: LogOutputChannel): Promise<void> {
  const requirements = join(context.extensionPath, "server", "requirements-mcp.txt");
  const title = "Token Sidecar: installing its MCP server";
  await window.withProgress({ location: ProgressLocation.Notification, title }, async () => {
    const own = managedProgram(context, "python");
    await step(log, own, [...PIP, "--require-hashes", "--only-binary", ":all:", "--requirement", requirements]);
  });
}

async function step(log: LogOutputChannel, program: string, args: string[]): Promise<void> {
  log.info([program, ...args].join(" "));
  try {
    const { stdout } = await run(program, args, { maxBuffer: 1 << 26 });
    log.info(stdout);
  } catch (error) {
    const { stderr, stdout } = error as { stderr?: string; stdout?: string };
    log.error([stdout, stderr].join("\n"));
    const last = [stdout, stderr].join("\n").trim().split("\n").at(-1) ?? "";
    throw new Error(`installing the server failed: ${last} (the log has the rest)`, { cause: error });
  }
}
