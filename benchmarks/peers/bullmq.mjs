// BullMQ on Redis: setup | enqueue WAY JOBS CALLERS | work. Run with the directory that holds node_modules as cwd.
import { attempts, main, REDIS, require, run, text } from "./frame.mjs";

const { Queue, Worker } = require("bullmq");
const Redis = require("ioredis");
const options = attempts ? { attempts } : {};
// Commands of a worker wait for a server that is away, as the documentation asks.
const connection = () => new Redis(REDIS, { maxRetriesPerRequest: null });

async function producer() {
  const store = connection();
  const queue = new Queue("bench", { connection: store });
  await queue.waitUntilReady();
  return {
    one: () => queue.add("job", { text: text() }, options),
    many: (count) => queue.addBulk(Array.from({ length: count }, () => ({ name: "job", data: { text: text() }, opts: options }))),
    close: async () => {
      await queue.close();
      store.disconnect();
    },
  };
}

async function work() {
  const worker = new Worker("bench", (job) => run(job.data.text, job.attemptsMade + 1), {
    connection: connection(),
    concurrency: 100,
  });
  worker.on("error", () => {});
  await worker.waitUntilReady();
}

await main(producer, work);
