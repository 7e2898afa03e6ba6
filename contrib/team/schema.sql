-- ClickHouse schema for the calls of a team. Run it again after an update: it replaces views and keeps tables.
--
-- otel.otel_logs    raw records, as the OpenTelemetry collector writes them; kept for 30 days
-- llm.calls         one row per call, even if several programs report it; kept for 400 days. Query it with FINAL.
-- llm.daily         sums by day, session and model, which dashboards and `cost --team` read
-- llm.prompt_files  what each prompt file has cost in 30 days, by the day of the report; kept for 400 days
-- llm.missing       what machines say they have sent, and the store does not have
-- llm.names, llm.teams    users' names by hash, and in which team they are since when; add-user.sh fills both
-- llm.budgets       each team's budget per month; you fill it

CREATE DATABASE IF NOT EXISTS otel;
CREATE DATABASE IF NOT EXISTS llm;

CREATE TABLE IF NOT EXISTS otel.otel_logs (
    Timestamp DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    TimestampTime DateTime DEFAULT toDateTime(Timestamp),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    TraceFlags UInt8,
    SeverityText LowCardinality(String) CODEC(ZSTD(1)),
    SeverityNumber UInt8,
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    Body String CODEC(ZSTD(1)),
    ResourceSchemaUrl LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeSchemaUrl LowCardinality(String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion LowCardinality(String) CODEC(ZSTD(1)),
    ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    LogAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    EventName String CODEC(ZSTD(1)),
    Received DateTime DEFAULT now()
) ENGINE = MergeTree
PARTITION BY toDate(Received)
ORDER BY (ServiceName, Timestamp)
TTL Received + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1;

-- Only the row with the highest version is kept for each id. Agents' own reports have version 0, so reports
-- from token-sidecar replace them. FINAL also merges rows across partitions.
CREATE TABLE IF NOT EXISTS llm.calls (
    call_id FixedString(16),
    at DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    user LowCardinality(String),
    team LowCardinality(String),
    installation LowCardinality(String),
    source LowCardinality(String),
    agent LowCardinality(String),
    provider LowCardinality(String),
    model LowCardinality(String),
    category LowCardinality(String),
    tier LowCardinality(String),
    session UInt64 CODEC(ZSTD(1)),
    branch LowCardinality(String),
    project LowCardinality(String),
    input UInt32 CODEC(ZSTD(1)),
    cache_read UInt32 CODEC(ZSTD(1)),
    cache_write UInt32 CODEC(ZSTD(1)),
    output UInt32 CODEC(ZSTD(1)),
    reasoning UInt32 CODEC(ZSTD(1)),
    estimated Nullable(UInt32) CODEC(ZSTD(1)),
    unpriced UInt32 CODEC(ZSTD(1)),
    cost Decimal(18, 12) CODEC(ZSTD(1)),
    cost_source LowCardinality(String),
    version UInt64 CODEC(ZSTD(1)),
    received DateTime DEFAULT now() CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(at)
ORDER BY call_id
TTL toDateTime(at) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1;
ALTER TABLE llm.calls ADD COLUMN IF NOT EXISTS branch LowCardinality(String) AFTER session;
ALTER TABLE llm.calls ADD COLUMN IF NOT EXISTS project LowCardinality(String) AFTER branch;

-- `whole - part`, or 0 if an agent reports a part that is larger than the whole.
CREATE OR REPLACE FUNCTION llm_rest AS (whole, part) -> toUInt32(greatest(0, toInt64(whole) - toInt64(part)));
CREATE OR REPLACE FUNCTION llm_id AS (name) -> toFixedString(substring(SHA256(name), 1, 16), 16);
-- Records of other times are ignored. An insert into more than 100 months would fail, and the collector repeat it.
CREATE OR REPLACE FUNCTION llm_is_recent AS (time) ->
    time > now() - INTERVAL 5 YEAR AND time < now() + INTERVAL 1 YEAR;

CREATE OR REPLACE MATERIALIZED VIEW llm.from_token_sidecar TO llm.calls AS
WITH
    LogAttributes AS a,
    ResourceAttributes AS r,
    toUInt32OrZero(a['gen_ai.usage.cache_read.input_tokens']) AS read_tokens,
    toUInt32OrZero(a['gen_ai.usage.cache_write.input_tokens']) AS write_tokens,
    toUInt32OrZero(a['gen_ai.usage.reasoning.output_tokens']) AS reasoning_tokens
SELECT
    toFixedString(unhex(a['token_sidecar.call.id']), 16) AS call_id,
    toDateTime64(Timestamp, 3, 'UTC') AS at,
    if(r['user.hash'] = '', r['service.instance.id'], r['user.hash']) AS user,
    r['team.id'] AS team, -- only from collectors that do not identify users, for this release: see llm.teams
    r['service.instance.id'] AS installation,
    'token-sidecar' AS source,
    a['gen_ai.agent.name'] AS agent,
    a['gen_ai.provider.name'] AS provider,
    a['gen_ai.request.model'] AS model,
    a['token_sidecar.category'] AS category,
    a['token_sidecar.service_tier'] AS tier,
    reinterpretAsUInt64(unhex(substring(a['gen_ai.conversation.id'], 1, 16))) AS session,
    a['token_sidecar.branch'] AS branch,
    a['token_sidecar.project'] AS project,
    llm_rest(toUInt32OrZero(a['gen_ai.usage.input_tokens']), read_tokens + write_tokens) AS input,
    read_tokens AS cache_read,
    write_tokens AS cache_write,
    llm_rest(toUInt32OrZero(a['gen_ai.usage.output_tokens']), reasoning_tokens) AS output,
    reasoning_tokens AS reasoning,
    toUInt32OrNull(a['token_sidecar.estimated_tokens']) AS estimated,
    toUInt32OrZero(a['token_sidecar.unpriced_tokens']) AS unpriced,
    toDecimal64OrZero(a['token_sidecar.cost_usd'], 12) AS cost,
    a['token_sidecar.cost_source'] AS cost_source,
    toUInt64OrZero(a['token_sidecar.call.version']) AS version
FROM otel.otel_logs
WHERE llm_is_recent(Timestamp) AND ServiceName = 'token-sidecar' AND length(a['token_sidecar.call.id']) = 32;

-- Claude Code with CLAUDE_CODE_ENABLE_TELEMETRY=1 and OTEL_LOGS_EXPORTER=otlp. Summaries are identified by
-- session and tokens, because Claude Code's files do not contain their request ids.
CREATE OR REPLACE MATERIALIZED VIEW llm.from_claude_code TO llm.calls AS
WITH
    LogAttributes AS a,
    ResourceAttributes AS r,
    a['query_source'] = 'compact' AS is_summary,
    toUInt32OrZero(a['input_tokens']) AS input_tokens,
    toUInt32OrZero(a['cache_read_tokens']) AS read_tokens,
    toUInt32OrZero(a['cache_creation_tokens']) AS write_tokens
SELECT
    llm_id(concat('anthropic/', if(is_summary,
        concat(a['session.id'], '/', toString(input_tokens + read_tokens + write_tokens), '/', a['output_tokens']),
        a['request_id']))) AS call_id,
    toDateTime64(Timestamp, 3, 'UTC') AS at,
    r['user.hash'] AS user,
    r['team.id'] AS team,
    'claude-code' AS source,
    'claude-code' AS agent,
    'anthropic' AS provider,
    a['model'] AS model,
    multiIf(is_summary, 'summary', startsWith(a['query_source'], 'agent:'), 'subagent', 'main') AS category,
    sipHash64(a['session.id']) AS session,
    input_tokens AS input,
    read_tokens AS cache_read,
    write_tokens AS cache_write,
    toUInt32OrZero(a['output_tokens']) AS output,
    toDecimal64OrZero(a['cost_usd'], 12) AS cost,
    'agent' AS cost_source
FROM otel.otel_logs
WHERE llm_is_recent(Timestamp) AND ServiceName = 'claude-code' AND a['request_id'] != ''
    AND (EventName = 'claude_code.api_request' OR a['event.name'] IN ('api_request', 'claude_code.api_request'));

-- Codex with an `[otel]` exporter. Its events have no call id, so a call is identified by thread and tokens.
-- For each call, Codex sends a second `response.completed` event, which has no tokens and is ignored.
CREATE OR REPLACE MATERIALIZED VIEW llm.from_codex TO llm.calls AS
WITH
    LogAttributes AS a,
    ResourceAttributes AS r,
    toUInt32OrZero(a['cached_token_count']) AS read_tokens,
    toUInt32OrZero(a['cache_write_token_count']) AS write_tokens,
    toUInt32OrZero(a['reasoning_token_count']) AS reasoning_tokens
SELECT
    llm_id(concat('codex/', a['conversation.id'], '/', a['input_token_count'], '/', toString(read_tokens), '/',
        a['output_token_count'], '/', toString(reasoning_tokens))) AS call_id,
    toDateTime64(Timestamp, 3, 'UTC') AS at,
    r['user.hash'] AS user,
    r['team.id'] AS team,
    'codex' AS source,
    'codex' AS agent,
    'openai' AS provider,
    a['model'] AS model,
    'main' AS category,
    sipHash64(a['conversation.id']) AS session,
    llm_rest(toUInt32OrZero(a['input_token_count']), read_tokens + write_tokens) AS input,
    read_tokens AS cache_read,
    write_tokens AS cache_write,
    llm_rest(toUInt32OrZero(a['output_token_count']), reasoning_tokens) AS output,
    reasoning_tokens AS reasoning,
    toUInt32OrZero(a['input_token_count']) + toUInt32OrZero(a['output_token_count']) AS unpriced,
    'unpriced' AS cost_source
FROM otel.otel_logs
WHERE llm_is_recent(Timestamp) AND startsWith(ServiceName, 'codex') AND a['event.kind'] = 'response.completed'
    AND a['conversation.id'] != '' AND a['input_token_count'] != ''
    AND (EventName = 'codex.sse_event' OR a['event.name'] = 'codex.sse_event');

-- Copilot Chat in VS Code with github.copilot.chat.otel.enabled.
CREATE OR REPLACE MATERIALIZED VIEW llm.from_copilot TO llm.calls AS
WITH
    LogAttributes AS a,
    ResourceAttributes AS r,
    toUInt32OrZero(a['gen_ai.usage.cache_read.input_tokens']) AS read_tokens,
    toUInt32OrZero(a['gen_ai.usage.cache_creation.input_tokens']) AS write_tokens,
    toUInt32OrZero(a['gen_ai.usage.reasoning.output_tokens']) AS reasoning_tokens
SELECT
    llm_id(concat('copilot/', a['gen_ai.response.id'])) AS call_id,
    toDateTime64(Timestamp, 3, 'UTC') AS at,
    r['user.hash'] AS user,
    r['team.id'] AS team,
    'copilot-chat' AS source,
    'copilot-chat' AS agent,
    'github' AS provider,
    if(a['gen_ai.response.model'] = '', a['gen_ai.request.model'], a['gen_ai.response.model']) AS model,
    'main' AS category,
    sipHash64(a['gen_ai.conversation.id']) AS session,
    llm_rest(toUInt32OrZero(a['gen_ai.usage.input_tokens']), read_tokens + write_tokens) AS input,
    read_tokens AS cache_read,
    write_tokens AS cache_write,
    llm_rest(toUInt32OrZero(a['gen_ai.usage.output_tokens']), reasoning_tokens) AS output,
    reasoning_tokens AS reasoning,
    toUInt32OrZero(a['gen_ai.usage.input_tokens']) + toUInt32OrZero(a['gen_ai.usage.output_tokens']) AS unpriced,
    'unpriced' AS cost_source
FROM otel.otel_logs
WHERE llm_is_recent(Timestamp) AND ServiceName = 'copilot-chat' AND a['gen_ai.response.id'] != ''
    AND (EventName = 'gen_ai.client.inference.operation.details'
        OR a['event.name'] = 'gen_ai.client.inference.operation.details');

-- Sums of whole days. If a day is computed again, the rows with the latest `computed` replace all others.
CREATE TABLE IF NOT EXISTS llm.daily_sums (
    day Date,
    user LowCardinality(String),
    team LowCardinality(String),
    agent LowCardinality(String),
    provider LowCardinality(String),
    model LowCardinality(String),
    category LowCardinality(String),
    session UInt64,
    branch LowCardinality(String),
    project LowCardinality(String),
    installation LowCardinality(String),
    calls UInt64,
    input UInt64,
    cache_read UInt64,
    cache_write UInt64,
    output UInt64,
    reasoning UInt64,
    estimated_calls UInt64,
    estimated UInt64,
    estimated_prompt UInt64,
    cost Decimal(38, 12),
    reported Decimal(38, 12),
    priced_calls UInt64,
    partly_priced_calls UInt64,
    unpriced UInt64,
    first_at DateTime64(3, 'UTC'),
    last_at DateTime64(3, 'UTC'),
    computed DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree(computed)
PARTITION BY toYYYYMM(day)
ORDER BY (day, team, user, agent, model, provider, category, session, branch, project, installation)
TTL day + INTERVAL 1200 DAY
SETTINGS ttl_only_drop_parts = 1;
ALTER TABLE llm.daily_sums ADD COLUMN IF NOT EXISTS branch LowCardinality(String) AFTER session,
    ADD COLUMN IF NOT EXISTS project LowCardinality(String) AFTER branch,
    ADD COLUMN IF NOT EXISTS installation LowCardinality(String) AFTER project,
    MODIFY ORDER BY (day, team, user, agent, model, provider, category, session, branch, project, installation);

CREATE TABLE IF NOT EXISTS llm.names (user String, name String) ENGINE = ReplacingMergeTree ORDER BY user;
CREATE TABLE IF NOT EXISTS llm.budgets (team String, month Date, usd Decimal(18, 2))
ENGINE = ReplacingMergeTree ORDER BY (team, month);
-- The first team of a user also has the calls before `since`.
CREATE TABLE IF NOT EXISTS llm.teams (user String, since Date, team String)
ENGINE = ReplacingMergeTree ORDER BY (user, since);

CREATE OR REPLACE VIEW llm.team_since AS
SELECT user, if(row_number() OVER (PARTITION BY user ORDER BY since) = 1, toDate(0), since) AS since, team
FROM llm.teams FINAL;

-- USD per million tokens, as each user's machines last knew them.
CREATE TABLE IF NOT EXISTS llm.prices (
    provider String,
    model String,
    user String,
    input Decimal(18, 6),
    cache_read Decimal(18, 6),
    cache_write Decimal(18, 6),
    output Decimal(18, 6),
    reported DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree(reported)
ORDER BY (provider, model, user);

CREATE OR REPLACE MATERIALIZED VIEW llm.from_prices TO llm.prices AS
WITH LogAttributes AS a, ResourceAttributes AS r
SELECT
    a['gen_ai.provider.name'] AS provider,
    a['gen_ai.request.model'] AS model,
    if(r['user.hash'] = '', r['service.instance.id'], r['user.hash']) AS user,
    toDecimal64OrZero(a['token_sidecar.price.input'], 6) AS input,
    toDecimal64OrZero(a['token_sidecar.price.cache_read'], 6) AS cache_read,
    toDecimal64OrZero(a['token_sidecar.price.cache_write'], 6) AS cache_write,
    toDecimal64OrZero(a['token_sidecar.price.output'], 6) AS output,
    toDateTime64(Timestamp, 3, 'UTC') AS reported
FROM otel.otel_logs
WHERE ServiceName = 'token-sidecar' AND a['token_sidecar.price.input'] != ''
    AND least(input, cache_read, cache_write, output) >= 0;

-- The price that most users' machines know, so that one with a wrong price changes nothing.
CREATE OR REPLACE VIEW llm.model_prices AS
SELECT
    provider, model, topK(1)((p.input, p.cache_read, p.cache_write, p.output))[1] AS price,
    -- With 128 bits, no number of tokens is too large to multiply.
    toDecimal128(price.1, 6) AS input, toDecimal128(price.2, 6) AS cache_read,
    toDecimal128(price.3, 6) AS cache_write, toDecimal128(price.4, 6) AS output
FROM llm.prices AS p FINAL GROUP BY provider, model;

-- The first UTC day whose calls are all kept. NULL if the retention of llm.calls is not given in days, weeks,
-- months, quarters or years.
CREATE OR REPLACE VIEW llm.first_kept_day AS
SELECT
    multiIf(
        any(position(engine, ' TTL ')) = 0, toDate(0),
        any(unit) = '', NULL,
        minIf(first, multiIf(
            unit = 'Day', first + toIntervalDay(length),
            unit = 'Week', first + toIntervalWeek(length),
            unit = 'Month', first + toIntervalMonth(length),
            unit = 'Quarter', first + toIntervalQuarter(length),
            first + toIntervalYear(length)) > toDate(now('UTC')))
    ) AS day
FROM (
    SELECT
        engine_full AS engine,
        extractGroups(engine_full, concat(
            ' TTL (?:at|toDate\\(at\\)|toDateTime\\(at\\)) \\+ ',
            'toInterval(Day|Week|Month|Quarter|Year)\\((\\d+)\\)(?: SETTINGS|$)')) AS retention,
        retention[1] AS unit,
        toUInt32OrZero(retention[2]) AS length,
        toDate32(now('UTC')) - arrayJoin(range(1 + toUInt32(toDate(now('UTC'))))) AS first
    FROM system.tables WHERE database = 'llm' AND name = 'calls'
);

-- FINAL is not needed, because each key occurs once in a computation.
CREATE OR REPLACE VIEW llm.daily AS
SELECT * FROM llm.daily_sums
WHERE calls > 0 AND (day, computed) IN (SELECT day, max(computed) FROM llm.daily_sums GROUP BY day);

-- Days with new calls since the last computation, and days with unpriced calls of models that have got a price. The
-- days before and after new calls are included, because two reports of a call near midnight can have different days.
-- Days that have lost calls to retention keep their sums.
CREATE OR REPLACE VIEW llm.changed_days AS
SELECT DISTINCT changed AS day
FROM (
    SELECT arrayJoin([day - 1, day, day + 1]) AS changed
    FROM (
        SELECT DISTINCT toDate(at) AS day FROM llm.calls
        WHERE received + INTERVAL 10 MINUTE >= (SELECT toDateTime(max(computed)) FROM llm.daily_sums)
    )
    UNION ALL
    SELECT day FROM llm.daily AS d
    WHERE d.installation = '' -- computed by an earlier version of this schema
        OR d.calls > d.priced_calls AND (d.provider, d.model) IN (SELECT provider, model FROM llm.model_prices)
)
WHERE changed >= (SELECT ifNull(any(k.day), toDate(0)) FROM llm.first_kept_day AS k);

CREATE OR REPLACE VIEW llm.compute_daily AS
WITH c.cost_source = 'unpriced' AND p.model != '' AS is_priced_here
SELECT
    toDate(at) AS day, c.user AS user, if(t.team = '', c.team, t.team) AS team,
    agent, c.provider AS provider, c.model AS model, category, session, branch, project,
    if(c.installation = '', c.source, c.installation) AS installation,
    count() AS calls,
    sum(c.input) AS input,
    sum(c.cache_read) AS cache_read,
    sum(c.cache_write) AS cache_write,
    sum(c.output) AS output,
    sum(c.reasoning) AS reasoning,
    countIf(isNotNull(c.estimated)) AS estimated_calls,
    sum(ifNull(c.estimated, 0)) AS estimated,
    sumIf(c.input + c.cache_read + c.cache_write, isNotNull(c.estimated)) AS estimated_prompt,
    sum(c.cost) + sumIf(toDecimal128(c.input * p.input + c.cache_read * p.cache_read + c.cache_write * p.cache_write
        + (c.output + c.reasoning) * p.output, 12) / 1000000, is_priced_here) AS cost,
    sumIf(c.cost, cost_source = 'reported') AS reported,
    countIf(cost_source != 'unpriced' OR is_priced_here) AS priced_calls,
    countIf(cost_source = 'partly') AS partly_priced_calls,
    sumIf(c.unpriced, NOT is_priced_here) AS unpriced,
    min(at) AS first_at,
    max(at) AS last_at,
    now64(3, 'UTC') AS computed
FROM (SELECT * FROM llm.calls FINAL WHERE toDate(at) IN (SELECT day FROM llm.changed_days)) AS c
ASOF LEFT JOIN llm.team_since AS t ON t.user = c.user AND toDate(c.at) >= t.since
LEFT JOIN llm.model_prices AS p ON p.provider = c.provider AND p.model = c.model
GROUP BY day, user, team, agent, provider, model, category, session, branch, project, installation
UNION ALL  -- an empty row, so that the old sums of a day without calls are also replaced
SELECT
    day, '', '', '', '', '', '', 0, '', '', '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    toDateTime64(0, 3, 'UTC'), toDateTime64(0, 3, 'UTC'), now64(3, 'UTC')
FROM llm.changed_days;

CREATE OR REPLACE MATERIALIZED VIEW llm.refresh_daily
REFRESH EVERY 1 MINUTE APPEND TO llm.daily_sums AS SELECT * FROM llm.compute_daily;

-- The share of the prompt that came from a cache, by day and model.
CREATE OR REPLACE VIEW llm.cache_share AS
SELECT
    day, team, model,
    sum(cache_read) AS read,
    sum(input) + sum(cache_read) + sum(cache_write) AS prompt,
    if(prompt = 0, 0, read / prompt) AS share
FROM llm.daily GROUP BY day, team, model;

-- Each team's spending by month, with its budget if there is one.
CREATE OR REPLACE VIEW llm.budget_use AS
SELECT
    s.team AS team, s.month AS month, s.cost AS spent, b.usd AS budget,
    if(b.usd > 0, toFloat64(s.cost) / toFloat64(b.usd), NULL) AS share
FROM (SELECT team, toStartOfMonth(day) AS month, sum(cost) AS cost FROM llm.daily GROUP BY team, month) AS s
ASOF LEFT JOIN (SELECT team, month, usd FROM llm.budgets FINAL) AS b ON b.team = s.team AND b.month <= s.month;

-- Sessions with their cost. `session` is a hash, or 0 for calls without a session, which are left out.
CREATE OR REPLACE VIEW llm.sessions AS
SELECT
    session, any(d.user) AS user, any(d.team) AS team, any(d.agent) AS agent,
    sum(d.cost) AS cost, sum(d.calls) AS calls, min(d.first_at) AS first_at, max(d.last_at) AS last_at
FROM llm.daily AS d WHERE session != 0 GROUP BY session;

-- What prompt files such as CLAUDE.md have cost in the 30 days before `day`. Only a day's last report is kept.
-- `file` and `workspace` are hashes of paths, and `cost` is NULL if the model has no known price.
CREATE TABLE IF NOT EXISTS llm.prompt_files (
    day Date,
    user LowCardinality(String),
    team LowCardinality(String),
    installation LowCardinality(String),
    workspace UInt64,
    file UInt64,
    name LowCardinality(String),
    tokens UInt32,
    calls UInt64,
    cost Nullable(Decimal(18, 12)),
    reported DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree(reported)
PARTITION BY toYYYYMM(day)
ORDER BY (day, user, installation, workspace, file)
TTL day + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE OR REPLACE MATERIALIZED VIEW llm.from_prompt_files TO llm.prompt_files AS
WITH LogAttributes AS a, ResourceAttributes AS r
SELECT
    toDate(Timestamp, 'UTC') AS day,
    if(r['user.hash'] = '', r['service.instance.id'], r['user.hash']) AS user,
    r['team.id'] AS team,
    r['service.instance.id'] AS installation,
    reinterpretAsUInt64(unhex(substring(a['token_sidecar.file.workspace'], 1, 16))) AS workspace,
    reinterpretAsUInt64(unhex(substring(a['token_sidecar.file.id'], 1, 16))) AS file,
    a['token_sidecar.file.name'] AS name,
    toUInt32OrZero(a['token_sidecar.file.tokens']) AS tokens,
    toUInt64OrZero(a['token_sidecar.file.calls']) AS calls,
    toDecimal64OrNull(a['token_sidecar.cost_usd'], 12) AS cost,
    toDateTime64(Timestamp, 3, 'UTC') AS reported
FROM otel.otel_logs
WHERE llm_is_recent(Timestamp) AND ServiceName = 'token-sidecar' AND length(a['token_sidecar.file.id']) = 32;

-- The latest report of each prompt file. A user's own file, which is sent in several workspaces, has one row.
CREATE OR REPLACE VIEW llm.expensive_prompt_files AS
SELECT
    file, name, user, any(if(t.team = '', l.team, t.team)) AS team, max(l.day) AS day, max(l.tokens) AS tokens,
    sum(l.calls) AS calls, sum(l.cost) AS cost
FROM (
    SELECT
        user, installation, workspace, file, max(p.day) AS day,
        argMax((p.name, p.team, p.tokens, p.calls, p.cost), p.reported) AS newest,
        newest.1 AS name, newest.2 AS team, newest.3 AS tokens, newest.4 AS calls, newest.5 AS cost
    FROM llm.prompt_files AS p WHERE p.day > today() - 30 GROUP BY user, installation, workspace, file
) AS l
LEFT JOIN (SELECT user, argMax(team, since) AS team FROM llm.teams GROUP BY user) AS t ON t.user = l.user
GROUP BY file, name, user;

-- What each machine has sent of each day, by its own count. A machine reports it once a day.
CREATE TABLE IF NOT EXISTS llm.day_totals (
    day Date,
    user LowCardinality(String),
    installation LowCardinality(String),
    calls UInt64,
    tokens UInt64,
    cost Decimal(38, 12),
    reported DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree(reported)
PARTITION BY toYYYYMM(day)
ORDER BY (user, installation, day)
TTL day + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE OR REPLACE MATERIALIZED VIEW llm.from_day_totals TO llm.day_totals AS
WITH LogAttributes AS a, ResourceAttributes AS r
SELECT
    toDateOrZero(a['token_sidecar.day']) AS day,
    if(r['user.hash'] = '', r['service.instance.id'], r['user.hash']) AS user,
    r['service.instance.id'] AS installation,
    toUInt64OrZero(a['token_sidecar.day.calls']) AS calls,
    toUInt64OrZero(a['gen_ai.usage.input_tokens']) + toUInt64OrZero(a['gen_ai.usage.output_tokens']) AS tokens,
    toDecimal128OrZero(a['token_sidecar.cost_usd'], 12) AS cost,
    toDateTime64(Timestamp, 3, 'UTC') AS reported
FROM otel.otel_logs
WHERE llm_is_recent(day) AND ServiceName = 'token-sidecar' AND a['token_sidecar.day.calls'] != '';

-- Days of which a machine has sent more than the store has. The daily sums have its calls within 10 minutes. If two
-- machines of a user have sent the same calls, the store counts them for one: `elsewhere` is what it has of the others.
CREATE OR REPLACE VIEW llm.missing AS
SELECT
    s.user AS user, s.installation AS installation, s.day AS day, s.calls AS sent, d.calls AS stored,
    greatest(toInt64(s.calls) - toInt64(d.calls), 0) AS missing, s.cost - d.cost AS usd, u.calls - d.calls AS elsewhere
FROM (
    SELECT * FROM llm.day_totals FINAL
    WHERE day >= (SELECT ifNull(any(k.day), toDate(0)) FROM llm.first_kept_day AS k)
        AND reported + INTERVAL 10 MINUTE < now64(3, 'UTC')
) AS s
LEFT JOIN (
    SELECT
        user, installation, day, sum(calls) AS calls, sum(cost) AS cost,
        sum(input + cache_read + cache_write + output + reasoning) AS tokens
    FROM llm.daily GROUP BY user, installation, day
) AS d ON d.user = s.user AND d.installation = s.installation AND d.day = s.day
LEFT JOIN (SELECT user, day, sum(calls) AS calls FROM llm.daily GROUP BY user, day) AS u ON u.user = s.user AND u.day = s.day
WHERE s.calls > d.calls OR s.tokens > d.tokens;
