/** The messages that this shim speaks: made from the server's schema, but for those it does not send yet. */

export type { Count, CountResult, Fitted, ModelInfo, StatusUpdate } from "./generated";

export interface ContextUsage {
  tokens: number | null;
  limit: number | null;
  limitSource: string | null;
  reserve: number | null;
  usable: number | null;
  available: number | null;
  percent: number | null;
  over: boolean | null;
  method: "calibrated" | "endpoint" | "estimate" | "exact" | null;
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

export interface Capability {
  endpoint: string;
  model: string | null;
  server: string | null;
  text: string;
  chat: string;
  limit: number | null;
}
