-- 0038 operator log subject: the acts on one job are found without a look at all of them.

CREATE INDEX operator_log_subject ON operator_log (subject, seq);
