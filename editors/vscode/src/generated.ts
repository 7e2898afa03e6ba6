// Made by editors/generate_types.py from `token-sidecar schema`: do not edit.

/**
 * The conversation's part; `percent` is of the usable window.
 */
export interface ContextStatus {
  tokens: number | null;
  percent: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
}

/**
 * What the workspace has cost, in USD.
 */
export interface CostStatus {
  costUsd: number | null;
  text: string;
  tooltip: string;
  severity: "error" | "ok" | "warning";
}

/**
 * The public answer to "how many tokens is this" (contract: `Count`).
 */
export interface Count {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  tokenizer: string;
  model: string;
  errorPercent: number | null;
  characters: number;
  limit: number | null;
  percent: number | null;
  inputCostUsd: number | null;
}

/**
 * What to count: one of `textDocument` or `text`; for which model or models.
 */
export interface CountParams {
  textDocument?: TextDocumentIdentifier | null;
  text?: string | null;
  messages?: Record<string, unknown>[] | null;
  tools?: Record<string, unknown>[] | null;
  range?: Range | null;
  ranges?: Range[] | null;
  model?: string | null;
  models?: string[] | null;
}

/**
 * A count, and the version of the document that was counted.
 */
export interface CountResult {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  tokenizer: string;
  model: string;
  errorPercent: number | null;
  characters: number;
  limit: number | null;
  percent: number | null;
  inputCostUsd: number | null;
  version: number | null;
  ranges: Count[] | null;
  models: Count[] | null;
}

/**
 * The document's part; `percent` is of its budget, else of the usable window.
 */
export interface DocumentStatus {
  tokens: number;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
  percent: number | null;
  budget: number | null;
  text: string;
  tooltip: string;
}

/**
 * A text, a document or a part of it, to be shortened to a number of tokens.
 */
export interface FitTextParams {
  textDocument?: TextDocumentIdentifier | null;
  text?: string | null;
  range?: Range | null;
  maxTokens: number;
  mode?: "end" | "middle" | "start";
  model?: string | null;
  marker?: string;
}

/**
 * A text that fits, and what it lost.
 */
export interface Fitted {
  text: string;
  tokens: number;
  removedTokens: number;
  removedLines: number;
  changed: boolean;
}

/**
 * What is known of a model (contract: `models/list`).
 */
export interface ModelInfo {
  id: string;
  provider: string | null;
  tokenizer: string;
  contextWindow: number | null;
  maxOutput: number | null;
  method: "calibrated" | "endpoint" | "estimate" | "exact";
}

/**
 * Which models to list: those whose `provider/id` holds every word of `query`.
 */
export interface ModelsParams {
  query?: string | null;
}

/**
 * A zero-based line, and an offset in it counted in code units of the negotiated encoding.
 */
export interface Position {
  line: number;
  character: number;
}

/**
 * A half-open span of a document: `start` is in it, `end` is the first position after it.
 */
export interface Range {
  start: Position;
  end: Position;
}

/**
 * Params of `status/update`: `text` is the line to show; null parts are not known.
 */
export interface StatusUpdate {
  workspace: string | null;
  uri: string | null;
  version: number | null;
  text: string;
  severity: "error" | "ok" | "warning";
  document: DocumentStatus | null;
  context: ContextStatus | null;
  cost: CostStatus | null;
}

/**
 * A document that the client has opened.
 */
export interface TextDocumentIdentifier {
  uri: string;
}
