// An AI extension that reports its conversation. Build it with
// `esbuild sample/extension.ts --bundle --platform=node --format=cjs --external:vscode`.
import { type ExtensionContext, extensions } from "vscode";
import type { Api } from "../src/api";

const session = "sample:1";

/** Return this extension's API: the context's last known size, and functions that report the conversation. */
export async function activate(context: ExtensionContext) {
  const sidecar = await extensions.getExtension<Api>("token-sidecar.token-sidecar")?.activate();
  if (!sidecar) throw new Error("Token Sidecar is not installed");
  let tokens: number | null = null;
  context.subscriptions.push(
    // The context is null for documents that are not in an open folder, such as the settings.json of VS Code.
    sidecar.onDidChangeStatus(({ workspace, context }) => {
      if (workspace !== null) tokens = context?.tokens ?? null;
    }),
  );
  return {
    tokens: () => tokens,
    /** Report the next request, and ask whether it fits. */
    async send(content: string): Promise<string> {
      await sidecar.request("context/set", { session, model: "gpt-4o", systemPrompt: "You are brief." });
      await sidecar.request("context/append", { session, turns: [{ role: "user", content }] });
      return (await sidecar.request<{ verdict: string }>("context/preflight", { session })).verdict;
    },
    /** Report the reply and its usage. The cost report includes the usage. */
    received: (response: object) => sidecar.request("context/response", { session, response }),
  };
}
