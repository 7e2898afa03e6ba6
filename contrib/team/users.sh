#!/bin/sh
# Creates three users: `collector`, which may only insert records, `lead`, and `reader`, which may not see users' names.
set -eu

# Prints text as an SQL string.
quoted() {
  printf "'%s'" "$(printf %s "$1" | sed "s/[\\\\']/\\\\&/g")"
}

# clickhouse-client reads CLICKHOUSE_USER and CLICKHOUSE_PASSWORD, so that `ps` shows no password.
export CLICKHOUSE_USER CLICKHOUSE_PASSWORD
clickhouse-client --multiquery <<SQL
CREATE USER IF NOT EXISTS collector IDENTIFIED BY $(quoted "$COLLECTOR_PASSWORD");
GRANT INSERT ON otel.otel_logs TO collector;
CREATE USER IF NOT EXISTS lead IDENTIFIED BY $(quoted "$LEAD_PASSWORD") SETTINGS readonly = 2;
CREATE USER IF NOT EXISTS reader IDENTIFIED BY $(quoted "$READER_PASSWORD") SETTINGS readonly = 2;
GRANT SELECT ON llm.* TO lead, reader;
REVOKE SELECT ON llm.names FROM reader;
SQL
