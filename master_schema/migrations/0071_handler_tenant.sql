-- 0071 handler tenant: jobs of a handler that declares a tenant, submitted in SQL without one, run for that tenant.

-- The headers of a job of this handler: its tenant, unless the submit names one; and an agent that does not know limits would start
-- it without a permit.
CREATE OR REPLACE FUNCTION submit_required(wanted text, options jsonb, meta bytea) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
DECLARE
    declared jsonb;
BEGIN
    SELECT h.spec INTO declared FROM handler AS h WHERE h.name = wanted;
    IF declared ->> 'tenant' IS NOT NULL AND options ->> 'tenant' IS NULL THEN
        meta := submit_of_tenant(meta, jsonb_build_object('tenant', declared -> 'tenant'), (SELECT r FROM submit_rule AS r));
    END IF;
    IF (declared -> 'limited' = 'true') IS NOT TRUE THEN
        RETURN meta;
    ELSIF submit_limit(options, 'complete_time') > 0 THEN
        PERFORM submit_refuse(format('handler ''%s'' has a limit, which cannot count a slow run that goes on after ''complete_time''', wanted),
                              'leave ''complete_time'' out, and give a timeout, which ends slow runs');
    END IF;
    RETURN headers_requiring(meta, 'limits');
END
$$;
