import {
  type Diagnostic,
  DiagnosticSeverity,
  type Disposable,
  EventEmitter,
  FileDecoration,
  type FileDecorationProvider,
  ThemeColor,
  type Uri,
  languages,
  window,
  workspace,
} from "vscode";
import { plain } from "./format";
import { DECORATIONS, SECTION } from "./settings";

const OVER = "!";
const COLORS: Partial<Record<DiagnosticSeverity, ThemeColor>> = {
  [DiagnosticSeverity.Error]: new ThemeColor("list.errorForeground"),
  [DiagnosticSeverity.Warning]: new ThemeColor("list.warningForeground"),
};

interface BudgetDiagnostic extends Diagnostic {
  /** Data that the server sent with the diagnostic. The client library adds this field. */
  readonly data?: { readonly tokens: number; readonly budget: number };
}

/** Marks files in the explorer that are near or over a budget. The numbers come from the diagnostics of open files. */
export class BudgetDecorations implements FileDecorationProvider, Disposable {
  private readonly changed = new EventEmitter<Uri[] | undefined>();
  readonly onDidChangeFileDecorations = this.changed.event;
  private readonly disposables: { dispose(): unknown }[];

  constructor() {
    this.disposables = [
      this.changed,
      window.registerFileDecorationProvider(this),
      languages.onDidChangeDiagnostics(({ uris }) => {
        this.changed.fire([...uris]);
      }),
      workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(`${SECTION}.${DECORATIONS}`)) this.changed.fire(undefined);
      }),
    ];
  }

  dispose(): void {
    for (const each of this.disposables) each.dispose();
  }

  provideFileDecoration(uri: Uri): FileDecoration | undefined {
    const [worst] = (languages.getDiagnostics(uri) as BudgetDiagnostic[]).filter(isBudget).sort((a, b) => a.severity - b.severity || used(b) - used(a));
    if (!worst || !workspace.getConfiguration(SECTION).get<boolean>(DECORATIONS)) return undefined;
    const badge = nameOf(worst) === "budget-exceeded" ? OVER : String(Math.min(used(worst), 99));
    return new FileDecoration(badge, plain(worst.message), COLORS[worst.severity]);
  }
}

function isBudget(diagnostic: Diagnostic): boolean {
  return diagnostic.source === "token-sidecar" && nameOf(diagnostic).startsWith("budget-");
}

function nameOf({ code }: Diagnostic): string {
  return String(typeof code === "object" ? code.value : code);
}

/** Return how much of a budget is used, as a whole percentage rounded down. */
function used({ data }: BudgetDiagnostic): number {
  return data ? Math.floor((100 * data.tokens) / data.budget) : 100;
}
