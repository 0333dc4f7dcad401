"""Order one of two lamps: ``python shop.py ada@example.org``. The order and its mail are one transaction."""

import os
import sys

import psycopg
from tasks import confirm, handlers

from jobmaster import call, connect_sync

TABLES = """
    CREATE TABLE IF NOT EXISTS lamp (one_row boolean PRIMARY KEY DEFAULT true, stock integer NOT NULL CHECK (stock >= 0));
    CREATE TABLE IF NOT EXISTS lamp_order (number serial PRIMARY KEY, email text NOT NULL);
    INSERT INTO lamp (stock) VALUES (2) ON CONFLICT DO NOTHING
"""

email = sys.argv[1]
with connect_sync(handlers=handlers) as cluster, psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    with connection.transaction():
        connection.execute(TABLES)
    try:
        with connection.transaction():
            rows = connection.execute("INSERT INTO lamp_order (email) VALUES (%s) RETURNING number", [email])
            [(number,)] = rows.fetchall()
            job = cluster.submit(call(confirm, email, number), connection=connection)
            connection.execute("UPDATE lamp SET stock = stock - 1")
    except psycopg.errors.CheckViolation:
        sys.exit("sold out: there is no order and no mail")
    print(job.result(timeout=30))
