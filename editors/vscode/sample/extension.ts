// An AI extension that reports its conversation: built with
// `esbuild sample/extension.ts --bundle --platform=node --format=cjs --external:vscode`.
import { type ExtensionContext, extensions } from "vscode";
import type { Api } from "../src/api";

const session = "sample:1";

/** What this extension gives: a conversation of its own, and the last word on how full it is. */
export async function activate(context: ExtensionContext) {
  const sidecar = await extensions.getExtension<Api>("token-sidecar.token-sidecar")?.activate();
  if (!sidecar) throw new Error("Token Sidecar is not installed");
  let tokens: number | null = null;
  context.subscriptions.push(
    // Outside every folder (VS Code opens its settings.json now and then) there is no conversation.
    sidecar.onDidChangeStatus(({ workspace, context }) => {
      if (workspace !== null) tokens = context?.tokens ?? null;
    }),
  );
  return {
    tokens: () => tokens,
    /** Tell what is about to be sent, and ask whether it fits. */
    async send(content: string): Promise<string> {
      await sidecar.request("context/set", { session, model: "gpt-4o", systemPrompt: "You are brief." });
      await sidecar.request("context/append", { session, turns: [{ role: "user", content }] });
      return (await sidecar.request<{ verdict: string }>("context/preflight", { session })).verdict;
    },
    /** Tell what came back: its usage anchors the number and is in the cost report. */
    received: (response: object) => sidecar.request("context/response", { session, response }),
  };
}
