import type { Disposable } from "vscode";
import type { StatusUpdate } from "./generated";

/**
 * The API for other extensions, from
 * `vscode.extensions.getExtension<Api>("token-sidecar.token-sidecar")?.activate()`. Members are only added.
 */
export interface Api {
  /**
   * Send a request of docs/reference/protocol.md, such as `context/append` to report a conversation. Rejects
   * with an error whose message can be shown to users.
   */
  request<R = unknown>(method: string, params: object): Promise<R>;
  /** Called with each `status/update`. For documents outside all folders, `workspace` and `context` are null. */
  onDidChangeStatus(listener: (status: StatusUpdate) => unknown): Disposable;
}
