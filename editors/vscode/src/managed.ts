import { execFile } from "node:child_process";
import { promises as fs } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { type ExtensionContext, type LogOutputChannel, ProgressLocation, window } from "vscode";
import { findPython, managedFolder, managedProgram } from "./locate";

const run = promisify(execFile);

/** Install the server that this extension carries into an environment of the extension's own. */
export async function installServer(context: ExtensionContext, log: LogOutputChannel): Promise<void> {
  const python = await findPython();
  if (!python) {
    throw new Error("no Python 3.11 or later was found on PATH: install one from python.org or your system, then try again");
  }
  const folder = managedFolder(context);
  const title = "Token Sidecar: installing its server";
  await window.withProgress({ location: ProgressLocation.Notification, title }, async (progress) => {
    try {
      await fs.rm(folder, { recursive: true, force: true });
      await step(log, python, ["-m", "venv", folder]);
      progress.report({ message: "with pip" });
      const pip = ["-m", "pip", "install", "--disable-pip-version-check", join(context.extensionPath, "server")];
      await step(log, managedProgram(context, "python"), pip);
    } catch (error) {
      await fs.rm(folder, { recursive: true, force: true });
      throw error;
    }
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
