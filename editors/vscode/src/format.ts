import type { Count } from "./generated";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Format a number in the same way as the server, in any locale: `12,345`. */
export function number(value: number): string {
  return WHOLE.format(value);
}

const mark = (method: Count["method"]): string => (method === "exact" || method === "endpoint" ? "" : "~");

/** Format a count, with `~` if it is not exact: `12,345`, `~12,345`. */
export function tokens(count: Pick<Count, "tokens" | "method">): string {
  return mark(count.method) + number(count.tokens);
}

/** Format a number with a noun: `1 turn`, `2,431 turns`. */
export function counted(value: number, noun: string): string {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Format a count with its unit: `1 token`, `~12,345 tokens`. */
export function tokensText(count: Pick<Count, "tokens" | "method">): string {
  return `${tokens(count)} token${count.tokens === 1 ? "" : "s"}`;
}

/** Format a whole percentage of a count in the same way as the server: `13 %`, `~13 %`. */
export const percent = (share: number, method: Count["method"]): string => `${mark(method)}${number(share)} %`;

/** Describe how a count was made: `o200k_base, exact`, `claude, estimate ±9.2 %`. */
export function how(count: Count): string {
  const error = count.errorPercent ? ` ±${count.errorPercent.toFixed(count.errorPercent >= 10 ? 0 : 1)} %` : "";
  return `${count.tokenizer}, ${count.method}${error}`;
}

/** Return a thrown value's message. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// Matches C0 (except line feed), DEL, C1, bidirectional controls, invisible characters and line separators.
const CONTROLS = /[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Escape untrusted text: control characters, links in messages and icons in labels. */
export function plain(text: string): string {
  return text
    .replace(CONTROLS, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .replaceAll("](", "] (")
    .replaceAll("$(", "$ (");
}
