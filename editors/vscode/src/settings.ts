import { type ExtensionContext, type Uri, workspace } from "vscode";

export const SECTION = "tokenSidecar";
/** The setting that shows budgets in the explorer. */
export const DECORATIONS = "fileDecorations";
/** The setting that shows a notification when a prompt cache has expired. */
export const COLD_NOTIFICATIONS = "coldNotifications";
const OWN_KEYS = [DECORATIONS, COLD_NOTIFICATIONS];

interface Contribution {
  properties: Record<string, unknown>;
}

/** Return the keys of all declared settings except those that only this extension reads. */
export function serverKeys(context: ExtensionContext): string[] {
  const manifest = context.extension.packageJSON as { contributes: { configuration: Contribution[] } };
  return manifest.contributes.configuration
    .flatMap((group) => Object.keys(group.properties))
    .map((key) => key.slice(SECTION.length + 1))
    .filter((key) => !key.startsWith("server.") && !OWN_KEYS.includes(key));
}

/** Return the configured settings as a nested object. Defaults are omitted, because they would override a project's file. */
export function writtenSettings(keys: readonly string[], scope: Uri | undefined): Record<string, unknown> {
  const config = workspace.getConfiguration(SECTION, scope ?? null);
  const written: Record<string, unknown> = {};
  for (const key of keys) {
    const { globalValue, workspaceValue, workspaceFolderValue } = config.inspect(key) ?? {};
    if ([globalValue, workspaceValue, workspaceFolderValue].some((value) => value !== undefined)) {
      put(written, key.split("."), config.get(key));
    }
  }
  return written;
}

function put(target: Record<string, unknown>, path: string[], value: unknown): void {
  const [head, ...rest] = path;
  if (head === undefined) return;
  if (rest.length === 0) {
    target[head] = value;
    return;
  }
  const inner = (target[head] ??= {}) as Record<string, unknown>;
  put(inner, rest, value);
}
