---@meta
-- Made by editors/generate_types.py from `token-sidecar schema`: do not edit.

--- The conversation's part; `percent` is of the usable window.
---@class token_sidecar.ContextStatus
---@field tokens? integer
---@field percent? integer
---@field text string
---@field tooltip string
---@field severity "error"|"ok"|"warning"

--- What the workspace has cost, in USD.
---@class token_sidecar.CostStatus
---@field costUsd? number
---@field text string
---@field tooltip string
---@field severity "error"|"ok"|"warning"

--- The public answer to "how many tokens is this" (contract: `Count`).
---@class token_sidecar.Count
---@field tokens integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field tokenizer string
---@field model string
---@field errorPercent? number
---@field characters integer
---@field limit? integer
---@field percent? integer
---@field inputCostUsd? number

--- What to count: one of `textDocument` or `text`; for which model or models.
---@class token_sidecar.CountParams
---@field textDocument? token_sidecar.TextDocumentIdentifier
---@field text? string
---@field messages? table[]
---@field tools? table[]
---@field range? token_sidecar.Range
---@field ranges? token_sidecar.Range[]
---@field model? string
---@field models? string[]

--- A count, and the version of the document that was counted.
---@class token_sidecar.CountResult
---@field tokens integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field tokenizer string
---@field model string
---@field errorPercent? number
---@field characters integer
---@field limit? integer
---@field percent? integer
---@field inputCostUsd? number
---@field version? integer
---@field ranges? token_sidecar.Count[]
---@field models? token_sidecar.Count[]

--- The document's part; `percent` is of its budget, else of the usable window.
---@class token_sidecar.DocumentStatus
---@field tokens integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field percent? integer
---@field budget? integer
---@field text string
---@field tooltip string

--- A text, a document or a part of it, to be shortened to a number of tokens.
---@class token_sidecar.FitTextParams
---@field textDocument? token_sidecar.TextDocumentIdentifier
---@field text? string
---@field range? token_sidecar.Range
---@field maxTokens integer
---@field mode? "end"|"middle"|"start"
---@field model? string
---@field marker? string

--- A text that fits, and what it lost.
---@class token_sidecar.Fitted
---@field text string
---@field tokens integer
---@field removedTokens integer
---@field removedLines integer
---@field changed boolean

--- What is known of a model (contract: `models/list`).
---@class token_sidecar.ModelInfo
---@field id string
---@field provider? string
---@field tokenizer string
---@field contextWindow? integer
---@field maxOutput? integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"

--- Which models to list: those whose `provider/id` holds every word of `query`.
---@class token_sidecar.ModelsParams
---@field query? string

--- A zero-based line, and an offset in it counted in code units of the negotiated encoding.
---@class token_sidecar.Position
---@field line integer
---@field character integer

--- A half-open span of a document: `start` is in it, `end` is the first position after it.
---@class token_sidecar.Range
---@field start token_sidecar.Position
---@field end token_sidecar.Position

--- Params of `status/update`: `text` is the line to show; null parts are not known.
---@class token_sidecar.StatusUpdate
---@field workspace? string
---@field uri? string
---@field version? integer
---@field text string
---@field severity "error"|"ok"|"warning"
---@field document? token_sidecar.DocumentStatus
---@field context? token_sidecar.ContextStatus
---@field cost? token_sidecar.CostStatus

--- A document that the client has opened.
---@class token_sidecar.TextDocumentIdentifier
---@field uri string
