// Graphile Worker: setup | enqueue WAY JOBS CALLERS | work. Run with the directory that holds node_modules as cwd.
import { attempts, DSN, main, require, run, text } from "./frame.mjs";

const graphile = require("graphile-worker");
const pg = require("pg");
const connectionString = DSN;
const spec = attempts ? { maxAttempts: attempts } : {};

async function setup() {
  const utils = await graphile.makeWorkerUtils({ connectionString });
  await utils.migrate();
  await utils.release();
}

async function producer() {
  const pgPool = new pg.Pool({ connectionString, max: 50 });
  const utils = await graphile.makeWorkerUtils({ pgPool });
  const one = () => utils.addJob("job", { text: text() }, spec);
  await one();
  return {
    one,
    many: (count) =>
      utils.addJobs(Array.from({ length: count }, () => ({ identifier: "job", payload: { text: text() }, ...spec }))),
    close: async () => {
      await utils.release();
      await pgPool.end();
    },
  };
}

async function work() {
  await graphile.run({
    logger: new graphile.Logger(() => () => {}),
    taskList: { job: async (payload, helpers) => void (await run(payload.text, helpers.job.attempts)) },
    preset: {
      worker: {
        connectionString,
        concurrentJobs: 100,
        maxPoolSize: 20,
        localQueue: { size: 2000 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
}

await main(producer, work, setup);
