import type { Disposable } from "vscode";
import type { StatusUpdate } from "./generated";

/**
 * What this extension gives to others, by
 * `vscode.extensions.getExtension<Api>("token-sidecar.token-sidecar")?.activate()`. Members are only added.
 */
export interface Api {
  /**
   * Send a request of the protocol (docs/reference/protocol.md), such as `context/append`: an AI extension
   * reports its conversation so. Rejects with a message for people.
   */
  request<R = unknown>(method: string, params: object): Promise<R>;
  /** Called with each `status/update`; outside all folders (VS Code's settings.json) `workspace` and `context` are null. */
  onDidChangeStatus(listener: (status: StatusUpdate) => unknown): Disposable;
}
