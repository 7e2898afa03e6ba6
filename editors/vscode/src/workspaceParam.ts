import { languages, window, workspace } from "vscode";
import { DOCUMENTS, type Server } from "./server";

/** What a question is about: the active document stands for its workspace; else the first folder. */
export function workspaceParam(server: Server): { workspace?: string } {
  const document = window.activeTextEditor?.document;
  if (document && languages.match(DOCUMENTS, document)) return { workspace: server.uri(document.uri) };
  const folder = workspace.workspaceFolders?.[0];
  return folder ? { workspace: folder.uri.toString() } : {};
}
