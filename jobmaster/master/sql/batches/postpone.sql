-- postpone: the leader has looked at a batch that has not ended
-- in: $1 uuid batch
-- in: $2 double precision seconds until it looks again; sooner when the batch expires or counts as abandoned before that
-- out: batch uuid
-- move: nothing
-- fence: the state: an ended batch is not looked at again
-- index: batch_pkey, batch_look
UPDATE batch
SET look_at = least(clock_timestamp() + make_interval(secs => $2::double precision),
                    CASE WHEN expires_at > clock_timestamp() THEN expires_at END,
                    CASE WHEN silent_after > clock_timestamp() THEN silent_after END)
WHERE id = $1::uuid AND look_at IS NOT NULL
RETURNING id AS batch
