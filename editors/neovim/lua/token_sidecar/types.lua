---@meta
-- Made by editors/generate_types.py from `token-sidecar schema`: do not edit.

--- Another model whose window has room for the request.
---@class token_sidecar.Alternative
---@field model string
---@field contextWindow integer

--- Appends turns to a conversation, with the reported usage of the last reply.
---@class token_sidecar.AppendParams
---@field workspace? string
---@field session? string
---@field turns token_sidecar.Turn[]
---@field usage? table

--- Assembles a request from its parts. The context is reused while its keys are unchanged.
---@class token_sidecar.AssembleParams
---@field workspace? string
---@field session? string
---@field preset? "mind"
---@field sensor? string
---@field assistant? string
---@field identity? string
---@field feedback? string
---@field tools? string|(string|table)[]
---@field context? string
---@field logs? string
---@field user? string
---@field mandates? string|string[]
---@field maxTokens? integer
---@field focus? string
---@field scope? string
---@field memoryVersion? string|integer|number

--- An assembled request. Join the texts of `sections` in order to get its text.
---@class token_sidecar.AssembleResult
---@field sections token_sidecar.AssembledSection[]
---@field tokens integer
---@field prefixHash string
---@field prefixCached boolean
---@field contextCached boolean
---@field skipped boolean
---@field trimLevel integer
---@field fits boolean
---@field schemaVersion integer
---@field intent? string
---@field budgetApplied integer
---@field pack token_sidecar.PackPart[]

--- A part of an assembled request.
---@class token_sidecar.AssembledSection
---@field name string
---@field text string
---@field tokens integer
---@field trimmed boolean

--- The size of a context by category, in tokens. The values add up to the context's size.
---
--- `overhead` includes the markup of the request format, and reported tokens that no other
--- category explains.
---@class token_sidecar.Breakdown
---@field system integer
---@field tools integer
---@field sections integer
---@field turns integer
---@field overhead integer
---@field logs integer
---@field config integer
---@field time integer

--- The calibration of estimates: real tokens = estimated tokens × factor.
---@class token_sidecar.CalibrationInfo
---@field factor number
---@field samples integer
---@field errorPercent? number

--- List the known capabilities of the endpoints. Sends no request to them.
---@class token_sidecar.CapabilitiesParams
---@field workspace? string
---@field textDocument? token_sidecar.TextDocumentIdentifier

--- An endpoint's capabilities for one model.
---@class token_sidecar.Capability
---@field endpoint string
---@field model string
---@field server? string
---@field text "auth"|"loading"|"lying"|"supported"|"unknown"|"unreachable"|"unsupported"
---@field chat "auth"|"loading"|"lying"|"supported"|"unknown"|"unreachable"|"unsupported"
---@field limit? integer
---@field checkedAt? string
---@field reason? string

--- A complete tool call, which the client can run.
---@class token_sidecar.CleanCall
---@field id string
---@field name string
---@field arguments table

--- A labelled part of the context, and its size in tokens.
---@class token_sidecar.ContextPart
---@field label string
---@field tokens integer

--- The status of a conversation. `percent` is relative to the usable window.
---@class token_sidecar.ContextStatus
---@field tokens? integer
---@field percent? integer
---@field text string
---@field tooltip string
---@field severity "error"|"ok"|"warning"
---@field source string
---@field sessions integer

--- How full a context is. `tokens` is the size of the next request.
---@class token_sidecar.ContextUsage
---@field tokens? integer
---@field limit? integer
---@field limitSource? "catalogue"|"default"|"endpoint"|"request"|"settings"|"transcript"
---@field reserve? integer
---@field usable? integer
---@field available? integer
---@field percent? integer
---@field over? boolean
---@field method? "calibrated"|"endpoint"|"estimate"|"exact"
---@field errorPercent? number
---@field model? string
---@field session? token_sidecar.SessionInfo
---@field breakdown? token_sidecar.Breakdown
---@field largest token_sidecar.ContextPart[]
---@field contents token_sidecar.ContextPart[]
---@field turns? integer
---@field shouldPrune? boolean
---@field compacted? boolean
---@field calibration? token_sidecar.CalibrationInfo
---@field costUsd? number
---@field forecast? token_sidecar.Forecast
---@field note? string
---@field severity "error"|"ok"|"warning"
---@field text string
---@field rows token_sidecar.ViewRow[]

--- The params of `context/warning`, which is sent once each time a threshold is crossed.
---@class token_sidecar.ContextWarning
---@field workspace? string
---@field session? string
---@field kind "budget"|"cap"|"compacted"|"droppedToolCalls"|"exhausted"
---@field message string
---@field usage? token_sidecar.ContextUsage

--- A bar of a chart.
---@class token_sidecar.CostBar
---@field label string
---@field share number
---@field text string

--- A chart with one bar for each value of a key. Days without calls are included.
---@class token_sidecar.CostChart
---@field by "agent"|"block"|"category"|"day"|"model"|"month"|"session"|"team"|"user"|"week"|"workspace"
---@field title string
---@field bars token_sidecar.CostBar[]

--- Requests a report of recorded calls.
---@class token_sidecar.CostDetailParams
---@field workspace? string
---@field session? string
---@field scope? "team"|"user"
---@field since? string
---@field until? string
---@field by? ("agent"|"block"|"category"|"day"|"model"|"month"|"session"|"team"|"user"|"week"|"workspace")[]
---@field charts? boolean

--- Requests the costs of prompt files.
---@class token_sidecar.CostFilesParams
---@field workspace? string
---@field since? string
---@field uris? string[]

--- Requests a page that shows a report of recorded calls.
---@class token_sidecar.CostPageParams
---@field workspace? string
---@field period? "all"|"custom"|"month"|"today"|"week"
---@field by? "agent"|"day"|"file"|"model"|"month"|"session"|"week"
---@field since? string
---@field until? string

--- Records a finished call. `usage` is the vendor's unmodified usage object.
---@class token_sidecar.CostRecordParams
---@field workspace? string
---@field session? string
---@field model string
---@field category? string
---@field provider? string
---@field usage table
---@field estimatedTokens? integer
---@field requestId? string
---@field at? string

--- The result of recording a call, including its cost.
---@class token_sidecar.CostRecorded
---@field id string
---@field usage token_sidecar.Usage
---@field costUsd? number
---@field unpriced boolean
---@field duplicate boolean

--- The costs of recorded calls. `text` lists all rows, followed by a total if there are
--- several.
---@class token_sidecar.CostReport
---@field rows token_sidecar.CostRow[]
---@field totals token_sidecar.CostTotals
---@field text string
---@field basis string
---@field note string
---@field table? token_sidecar.CostTable
---@field charts token_sidecar.CostChart[]
---@field overview string

--- A group of calls with the same values of the report's keys. Other keys are null or absent.
---@class token_sidecar.CostRow
---@field model? string
---@field category? string
---@field session? string
---@field day? string
---@field week? string
---@field month? string
---@field block? string
---@field agent? string
---@field workspace? string
---@field user? string
---@field team? string
---@field calls integer
---@field promptTokens integer
---@field estimatedTokens? integer
---@field estimatedPromptTokens? integer
---@field completionTokens integer
---@field cacheReadTokens integer
---@field cacheWriteTokens integer
---@field costUsd? number
---@field reportedCostUsd number
---@field listedCostUsd? number
---@field agentCostUsd? number
---@field unpriced boolean
---@field note string
---@field text string
---@field costText string

--- Costs in USD.
---
--- `text` shows the cost of the displayed agent session. Without one, it shows today's cost in
--- all workspaces and ends in `today`. The tooltip shows both costs and the workspace's total.
---@class token_sidecar.CostStatus
---@field costUsd? number
---@field text string
---@field tooltip string
---@field severity "error"|"ok"|"warning"

--- A report as a table of text cells. `total` is the last row, or empty if there is one row
--- only.
---@class token_sidecar.CostTable
---@field heads string[]
---@field names integer
---@field rows string[][]
---@field total string[]

--- The totals of a report. `cost_usd` excludes the tokens in `unpriced_tokens`.
---@class token_sidecar.CostTotals
---@field calls integer
---@field inputTokens integer
---@field outputTokens integer
---@field cacheReadTokens integer
---@field cacheWriteTokens integer
---@field reasoningTokens integer
---@field costUsd number
---@field unpricedTokens integer
---@field costText string

--- The number of tokens in the text, with the method of the count.
---@class token_sidecar.Count
---@field tokens integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field tokenizer string
---@field model string
---@field errorPercent? number
---@field characters integer
---@field limit? integer
---@field limitSource? string
---@field percent? integer
---@field inputCostUsd? number
---@field note? string
---@field similarModels? string[]

--- What to count: exactly one of `textDocument`, `text` and `messages`.
---@class token_sidecar.CountParams
---@field textDocument? token_sidecar.TextDocumentIdentifier
---@field text? string
---@field messages? table[]
---@field tools? table[]
---@field range? token_sidecar.Range
---@field ranges? token_sidecar.Range[]
---@field model? string
---@field models? string[]

--- The result of a count. For a document, it includes the document's version.
---@class token_sidecar.CountResult
---@field tokens integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field tokenizer string
---@field model string
---@field errorPercent? number
---@field characters integer
---@field limit? integer
---@field limitSource? string
---@field percent? integer
---@field inputCostUsd? number
---@field note? string
---@field similarModels? string[]
---@field version? integer
---@field ranges? token_sidecar.Count[]
---@field models? token_sidecar.Count[]
---@field text string

--- The status of a document.
---
--- `percent` refers to the budget if there is one, otherwise to the usable window.
---@class token_sidecar.DocumentStatus
---@field tokens integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field percent? integer
---@field budget? integer
---@field text string
---@field tooltip string
---@field severity "error"|"ok"|"warning"

--- A tool call that was cut off. `reason` names what is missing.
---@class token_sidecar.Dropped
---@field name string
---@field reason string

--- The cost of a prompt file, which agents send with every request.
---@class token_sidecar.FileCost
---@field uri string
---@field tokens? integer
---@field requests integer
---@field costUsd? number
---@field cachedPercent? integer
---@field text string
---@field model? string
---@field method? "calibrated"|"endpoint"|"estimate"|"exact"

--- Requests a pruning plan, or applies an existing plan.
---@class token_sidecar.FitParams
---@field workspace? string
---@field session? string
---@field maxTokens? integer
---@field keepTurns? integer
---@field strategy? "drop"|"summarize"
---@field apply? boolean
---@field planId? string

--- A pruning plan. If the conversation still does not fit, `reason` explains why.
---@class token_sidecar.FitResult
---@field messages token_sidecar.Turn[]
---@field removed token_sidecar.Removed[]
---@field summary? string
---@field tokensBefore integer
---@field tokensAfter integer
---@field cachedTokensLost integer
---@field fits boolean
---@field planId string
---@field reason? string
---@field text string

--- Text, document or range to shorten to `maxTokens` tokens.
---@class token_sidecar.FitTextParams
---@field textDocument? token_sidecar.TextDocumentIdentifier
---@field text? string
---@field range? token_sidecar.Range
---@field maxTokens integer
---@field mode? "end"|"middle"|"start"
---@field model? string
---@field marker? string

--- The shortened text, what was removed, and how the tokens were counted.
---@class token_sidecar.FitTextResult
---@field text string
---@field tokens integer
---@field removedTokens integer
---@field removedLines integer
---@field changed boolean
---@field model string
---@field method "calibrated"|"endpoint"|"estimate"|"exact"
---@field tokenizer string
---@field errorPercent? number

--- A session's forecast, based on the calls recorded in the last 24 hours.
---@class token_sidecar.Forecast
---@field callsLeft? integer
---@field nextInputUsd? number
---@field nextInputUncachedUsd? number
---@field cachedUntil? string
---@field cacheHitPercent? number
---@field usdPerHour? number
---@field limits token_sidecar.PlanLimit[]
---@field block? token_sidecar.UsageBlock

--- A model in the catalogue.
---@class token_sidecar.ModelInfo
---@field id string
---@field provider? string
---@field tokenizer string
---@field contextWindow? integer
---@field maxOutput? integer
---@field method "calibrated"|"endpoint"|"estimate"|"exact"

--- List the models whose `provider/id` contains every word of `query`.
---@class token_sidecar.ModelsParams
---@field workspace? string
---@field query? string
---@field choices? boolean

--- A section of the assembled context.
---@class token_sidecar.PackPart
---@field name string
---@field tokens integer
---@field trimmed boolean

--- A page for an editor's panel. It contains no scripts, and names in it are escaped.
---@class token_sidecar.Page
---@field title string
---@field html string
---@field style string

--- A tool call that is about to run.
---@class token_sidecar.PendingToolCall
---@field name string
---@field expectedTokens? integer

--- A usage limit of an agent's subscription, as reported by the agent.
---@class token_sidecar.PlanLimit
---@field minutes integer
---@field usedPercent number
---@field resetsAt? string

--- A zero-based line, and a character offset in code units of the negotiated encoding.
---@class token_sidecar.Position
---@field line integer
---@field character integer

--- Checks a request before it is sent.
---@class token_sidecar.PreflightParams
---@field workspace? string
---@field session? string
---@field turns? token_sidecar.Turn[]
---@field text? string
---@field model? string
---@field maxOutputTokens? integer
---@field pendingToolCall? token_sidecar.PendingToolCall

--- The verdict on a request, and the reasons for it.
---@class token_sidecar.PreflightResult
---@field verdict "ok"|"refuse"|"warn"
---@field promptTokens integer
---@field available integer
---@field fits boolean
---@field deferTool boolean
---@field estimatedCostUsd? number
---@field reasons token_sidecar.Reason[]
---@field alternatives token_sidecar.Alternative[]

--- Probe one endpoint, or all endpoints if `endpoint` is missing.
---@class token_sidecar.ProbeParams
---@field endpoint? string
---@field model? string
---@field workspace? string
---@field textDocument? token_sidecar.TextDocumentIdentifier

--- A half-open range of positions. `end` is the position after the last character.
---@class token_sidecar.Range
---@field start token_sidecar.Position
---@field end token_sidecar.Position

--- A reason for a verdict of `context/preflight`. `kind` is, for example, `window`, `output` or
--- `budget`.
---@class token_sidecar.Reason
---@field kind string
---@field message string

--- A turn that a pruning plan removes, or removes in part if the reason is `orphan`.
---@class token_sidecar.Removed
---@field index integer
---@field role string
---@field tokens integer
---@field reason "dialogue"|"empty"|"orphan"|"toolOutput"

--- Removes everything from a conversation except its model.
---@class token_sidecar.ResetParams
---@field workspace? string
---@field session? string

--- Passes on a model's reply as the vendor sent it. A stream is a list or a string.
---@class token_sidecar.ResponseParams
---@field workspace? string
---@field session? string
---@field response table|string
---@field model? string
---@field provider? string
---@field category? string
---@field requestId? string
---@field format? "anthropic"|"bedrock"|"cohere"|"deepseek"|"gemini"|"lmstudio"|"mistral"|"ollama"|"openai-chat"|"openai-responses"|"xai"
---@field tools? table[]

--- The usable parts of a reply.
---@class token_sidecar.ResponseResult
---@field content string
---@field toolCalls token_sidecar.CleanCall[]
---@field dropped token_sidecar.Dropped[]
---@field unchecked string[]
---@field model? string
---@field requestId? string
---@field stopReason? string
---@field exhausted? "output"|"window"
---@field plan? token_sidecar.FitResult
---@field usage? token_sidecar.Usage
---@field calibration? token_sidecar.CalibrationInfo
---@field usageRecorded boolean
---@field usageProblem? string

--- The open document that provides a section's text.
---@class token_sidecar.SectionDocument
---@field uri string

--- A named section: either a `text`, or a `textDocument` with an optional `range`.
---@class token_sidecar.SectionSpec
---@field name string
---@field text? string
---@field textDocument? token_sidecar.SectionDocument
---@field range? token_sidecar.Range
---@field cap? integer
---@field priority? integer
---@field truncation? "end"|"middle"|"start"

--- Selects the session to show until it ends. Null restores automatic selection.
---@class token_sidecar.SelectParams
---@field workspace? string
---@field session? string

--- The session that a result describes.
---@class token_sidecar.SessionInfo
---@field id string
---@field source string
---@field updatedAt string
---@field label string

--- A session in the list of a workspace's sessions.
---@class token_sidecar.SessionRow
---@field id string
---@field source string
---@field title? string
---@field model? string
---@field tokens? integer
---@field limit? integer
---@field percent? integer
---@field method? "calibrated"|"endpoint"|"estimate"|"exact"
---@field note? string
---@field state "ended"|"idle"|"running"
---@field parent? string
---@field costUsd? number
---@field updatedAt string
---@field shown boolean
---@field pinned boolean
---@field severity "error"|"ok"|"warning"
---@field label string
---@field detail string
---@field text string

--- Requests the sessions from the last 24 hours, or all sessions.
---@class token_sidecar.SessionsParams
---@field workspace? string
---@field all? boolean

--- Sets parts of a conversation other than its turns. Null removes a part.
---@class token_sidecar.SetParams
---@field workspace? string
---@field session? string
---@field model? string
---@field systemPrompt? string
---@field tools? table[]
---@field sections? token_sidecar.SectionSpec[]
---@field limit? integer
---@field reserve? integer
---@field persist? boolean

--- Params of `status/update`. `text` is the status line. Fields without data are null.
---
--- `text` shows `?` for a document that is out of sync with the editor.
---@class token_sidecar.StatusUpdate
---@field workspace? string
---@field uri? string
---@field version? integer
---@field text string
---@field severity "error"|"ok"|"warning"
---@field document? token_sidecar.DocumentStatus
---@field context? token_sidecar.ContextStatus
---@field cost? token_sidecar.CostStatus
---@field costRevision integer

--- A document opened by the client.
---@class token_sidecar.TextDocumentIdentifier
---@field uri string

--- A message of a conversation, in any vendor's format.
---@class token_sidecar.Turn
---@field role string
---@field content? string|table
---@field name? string
---@field toolCalls? table[]
---@field toolCallId? string
---@field tool_calls? table[]
---@field tool_call_id? string

--- Reverts the last applied pruning plan.
---@class token_sidecar.UndoParams
---@field workspace? string
---@field session? string

--- The tokens of one call. `prompt_tokens` is the sum of `input_tokens`, cache reads and cache
--- writes.
---@class token_sidecar.Usage
---@field inputTokens integer
---@field cacheReadTokens integer
---@field cacheWriteTokens integer
---@field cacheWrite1hTokens integer
---@field outputTokens integer
---@field reasoningTokens integer
---@field promptTokens integer

--- The current five-hour period of a subscription's usage limit.
---@class token_sidecar.UsageBlock
---@field beganAt string
---@field endsAt string
---@field costUsd? number
---@field unpriced boolean

--- Requests the size and the parts of a context.
---@class token_sidecar.UsageParams
---@field workspace? string
---@field session? string
---@field contents? boolean

--- A row of the context view. A group of rows has `children` and an empty value.
---@class token_sidecar.ViewRow
---@field label string
---@field value string
---@field share? number
---@field severity "error"|"ok"|"warning"
---@field children token_sidecar.ViewRow[]
