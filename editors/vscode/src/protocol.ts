/** The part of the protocol that this shim speaks; the whole of it is docs/reference/protocol.md. */

export type Method = "exact" | "endpoint" | "calibrated" | "estimate";
export type Severity = "ok" | "warning" | "error";

export interface Count {
  tokens: number;
  method: Method;
  tokenizer: string;
  model: string;
  errorPercent: number | null;
  characters: number;
  limit: number | null;
  percent: number | null;
  inputCostUsd: number | null;
}

export interface CountResult extends Count {
  version: number | null;
  ranges: Count[] | null;
  models: Count[] | null;
}

export interface StatusPart {
  text: string;
  tooltip: string;
}

export interface StatusUpdate {
  workspace: string;
  uri: string | null;
  version: number | null;
  text: string;
  severity: Severity;
  document: StatusPart | null;
  context: StatusPart | null;
  cost: StatusPart | null;
}

export interface ContextUsage {
  tokens: number | null;
  limit: number | null;
  limitSource: string | null;
  reserve: number | null;
  usable: number | null;
  available: number | null;
  percent: number | null;
  over: boolean | null;
  method: Method | null;
  model: string | null;
  session: { id: string; source: string; updatedAt: string | null } | null;
  breakdown: { system: number; tools: number; sections: number; turns: number; overhead: number } | null;
  largest: { label: string; tokens: number }[];
  turns: number | null;
  shouldPrune: boolean | null;
  compacted: boolean | null;
  costUsd: number | null;
}

export interface ContextWarning {
  workspace: string;
  kind: string;
  message: string;
}

export interface CostDetail {
  rows: { text: string }[];
  totals: { calls: number; inputTokens: number; outputTokens: number; costUsd: number; unpricedTokens: number };
  text: string;
}

export interface ModelInfo {
  id: string;
  provider: string | null;
  tokenizer: string;
  contextWindow: number | null;
  method: Method;
}

export interface Capability {
  endpoint: string;
  model: string | null;
  server: string | null;
  text: string;
  chat: string;
  limit: number | null;
}

export interface Fitted {
  text: string;
  tokens: number;
  removedTokens: number;
  removedLines: number;
  changed: boolean;
}
