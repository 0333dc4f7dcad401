-- publish_submit_rule: limits and defaults of the configuration, for submits in SQL
-- in: $1 text JSON object of the columns
-- out: nothing
-- move: nothing
-- fence: none: the last one to publish counts; equal values are not written
-- index: none; the table has one row
UPDATE submit_rule AS r
SET (args_bytes, headers_bytes, tags, tag_chars, due_ahead_days, clock_skew_seconds, priority, lane, lanes, published_at)
  = (new.args_bytes, new.headers_bytes, new.tags, new.tag_chars, new.due_ahead_days, new.clock_skew_seconds, new.priority, new.lane, new.lanes, clock_timestamp())
FROM jsonb_to_record($1::text::jsonb) AS new (
    args_bytes bigint, headers_bytes bigint, tags integer, tag_chars integer, due_ahead_days integer, clock_skew_seconds double precision,
    priority smallint, lane text, lanes text[]
)
WHERE (r.args_bytes, r.headers_bytes, r.tags, r.tag_chars, r.due_ahead_days, r.clock_skew_seconds, r.priority, r.lane, r.lanes)
   IS DISTINCT FROM
      (new.args_bytes, new.headers_bytes, new.tags, new.tag_chars, new.due_ahead_days, new.clock_skew_seconds, new.priority, new.lane, new.lanes)
