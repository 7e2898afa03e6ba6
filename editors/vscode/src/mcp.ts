import * as vscode from "vscode";
import { reason } from "./format";
import { findServer, run } from "./locate";
import { installMcp } from "./managed";

const ID = "token-sidecar";
const HOW_TO_INSTALL = "install the extra: in your clone, run pipx inject --force token-sidecar '.[mcp]'";

// The part of VS Code's MCP API that this module uses. VS Code before 1.101 lacks the API, so it is optional here.
interface StdioDefinition {
  command: string;
  args: string[];
  cwd?: vscode.Uri;
}
interface DefinitionProvider {
  provideMcpServerDefinitions(): Promise<StdioDefinition[]>;
  resolveMcpServerDefinition(definition: StdioDefinition): Promise<StdioDefinition>;
}
interface McpApi {
  lm?: { registerMcpServerDefinitionProvider?(id: string, provider: DefinitionProvider): vscode.Disposable };
  McpStdioServerDefinition?: new (label: string, command: string, args: string[]) => StdioDefinition;
}

/** Offer the MCP server to agents in VS Code if this version of VS Code supports it. */
export function registerMcpServer(context: vscode.ExtensionContext, log: vscode.LogOutputChannel): void {
  const { lm, McpStdioServerDefinition } = vscode as unknown as McpApi;
  if (!lm?.registerMcpServerDefinitionProvider || !McpStdioServerDefinition) return;
  const provider: DefinitionProvider = {
    async provideMcpServerDefinitions() {
      const server = await findServer(context).catch(() => undefined);
      if (!server) return [];
      const args = [...server.args.slice(0, -1), "mcp"];
      const definition = new McpStdioServerDefinition("Token Sidecar", server.command, args);
      const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
      if (folder?.scheme === "file") definition.cwd = folder;
      return [definition];
    },
    async resolveMcpServerDefinition(definition) {
      if (await isUsable(definition)) return definition;
      const server = await findServer(context);
      if (server?.origin !== "managed environment") {
        throw new Error(`the server's MCP dependencies are missing: ${HOW_TO_INSTALL}`);
      }
      await installMcp(context, log);
      return definition;
    },
  };
  context.subscriptions.push(lm.registerMcpServerDefinitionProvider(ID, provider));
  log.debug("the MCP server is offered to agents");

  /** Return whether the extra `mcp` is installed. If it is not, the command exits with code 2. */
  async function isUsable({ command, args }: StdioDefinition): Promise<boolean> {
    return run(command, [...args, "--check"], { timeout: 30_000 }).then(
      () => true,
      (error: unknown) => {
        log.info(`token-sidecar mcp: ${reason(error)}`);
        return false;
      },
    );
  }
}
