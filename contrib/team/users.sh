#!/bin/sh
# Creates the users of the collector, which may only insert records, and of readers.
set -eu
clickhouse-client --user "$CLICKHOUSE_USER" --password "$CLICKHOUSE_PASSWORD" --multiquery <<SQL
CREATE USER IF NOT EXISTS collector IDENTIFIED BY '$COLLECTOR_PASSWORD';
GRANT INSERT ON otel.otel_logs TO collector;
CREATE USER IF NOT EXISTS reader IDENTIFIED BY '$READER_PASSWORD' SETTINGS readonly = 2;
GRANT SELECT ON llm.* TO reader;
SQL
