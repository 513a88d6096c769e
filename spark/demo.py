"""Send every flight out of New York in 2013 through two NSQ brokers into Spark, and check all figures.

    make demo                               or, with nsqkit[spark,demo] installed:
    python spark/demo.py [--rows N] [--partitions N] [--output DIR]

It starts two brokers on free ports of this machine, publishes each flight to the topic `flights` of one of them, and
runs the Spark job topic_to_parquet.py on the channel `spark`. Then it prints the figures of the Parquet files and of
the source, and a chart of the run, which it also writes to a file. Without Java it uses plain consumers and pyarrow
instead of Spark. The exit code is 0 only if every flight has arrived exactly once and every figure equals the source.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM

import anyio
import attrs
import chart
from flights import COUNT, KEY, SCHEMA, Figures, Flights, flight_table
from progress import Progress

from nsqkit import Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.spark import KEY_COLUMNS, ConsumerSpec, ParquetSink, drain_to_handler_async, named_nodes, plan_spec

TOPIC, CHANNEL = "flights", "spark"
JAVA_MIN = 17
PUBLISH_AT_ONCE = 500
MAX_IN_FLIGHT = 160_000
"""A partition stores half of its share at a time, and a few large slots or files cost less than many small ones."""
LINGER_MS = 2000
"""The brokers publish and serve in this program's thread, so a task may wait for messages longer than by default."""
EXIT_TIMEOUT = 10.0
SAMPLE_INTERVAL = 0.25
CHART_SUFFIXES = (".png", ".svg", ".pdf")
COLUMNS_MAX = 120
"""The widest chart in a terminal."""


@attrs.frozen
class Outcome:
    """The content of the Parquet files: figures by carrier, and the numbers of distinct flights and messages."""

    figures: dict[str, Figures]
    distinct_flights: int
    distinct_messages: int

    @property
    def row_count(self):
        return sum(figures.flights for figures in self.figures.values())


# ---- brokers and messages ------------------------------------------------------------------------------------------


def make_broker():
    return Nsqd(BrokerOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", max_rdy_count=MAX_IN_FLIGHT))


async def publish(messages, addresses):
    """Publish batches, to each broker in turn."""
    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(Producer(address)) for address in addresses]
        for producer in itertools.cycle(producers):
            if not (batch := list(itertools.islice(messages, PUBLISH_AT_ONCE))):
                return
            await producer.multi_publish(TOPIC, batch)


def take_sample(brokers, seconds):
    """Return the figures of the brokers now. Until the channel exists, a topic's messages wait in the topic."""
    columns = []
    for broker in brokers:
        topics = broker.broker.topics.values()
        channels = [channel for topic in topics for channel in topic.channels.values()]
        in_flight = sum(channel.in_flight_count for channel in channels)
        depth = sum(len(queued.queue) for queued in (*topics, *channels))
        unfinished = in_flight + sum(len(channel.queue) + len(channel.deferred) for channel in channels)
        finished = sum(channel.message_count for channel in channels) - unfinished
        columns.append((sum(topic.message_count for topic in topics), finished, in_flight, depth))
    return chart.Sample(seconds, *zip(*columns, strict=True))


def count(brokers, name):
    return sum(getattr(take_sample(brokers, 0), name))


async def record(brokers, samples):
    """Append a sample at every interval until cancelled, and one more at the end."""
    start = time.monotonic()
    try:
        while True:
            samples.append(take_sample(brokers, time.monotonic() - start))
            await anyio.sleep(SAMPLE_INTERVAL)
    finally:
        samples.append(take_sample(brokers, time.monotonic() - start))


# ---- the two pipelines ---------------------------------------------------------------------------------------------


async def run_on_spark(brokers, arguments, output, work):
    """Run the job as a separate program; return whether it succeeded, and print the end of its log if not."""
    here = Path(__file__).parent
    env = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--master local[{arguments.partitions}] pyspark-shell",
        "SPARK_CONF_DIR": str(here / "conf"),
        "SPARK_LOCAL_DIRS": str(work),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    source = {
        "nsqd.addresses": ",".join(broker.tcp_address for broker in brokers),
        "nsqd.http.addresses": ",".join(broker.http_address for broker in brokers),
        "subscribe": TOPIC,
        "channel": CHANNEL,
        "walLocation": work / "wal",
        "partitions": arguments.partitions,
        "maxInFlight": MAX_IN_FLIGHT,
        "lingerMs": LINGER_MS,
    }
    command = [sys.executable, str(here / "topic_to_parquet.py"), f"--output={output}"]
    command += [f"--schema={SCHEMA}", "--partition-by=carrier"]
    command += [f"--source={key}={value}" for key, value in source.items()]
    log = work / "spark.log"
    with log.open("wb") as file:
        # A new session, so that ^C reaches only this program, which then ends the job's processes.
        job = await anyio.open_process(
            command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = await job.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await end_group(job.pid)
                await job.aclose()
    if code:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        print(
            f"\n{end}\nThe Spark job has failed with exit code {code}; above is the end of its log.",
            file=sys.stderr,
        )
    return code == 0


async def end_group(group):
    """End all processes of a group and wait for their end; the job's Java ends after its Python."""
    with suppress(ProcessLookupError):
        os.killpg(group, SIGTERM)
        with anyio.move_on_after(EXIT_TIMEOUT):
            while True:
                os.killpg(group, 0)
                await anyio.sleep(0.05)
        os.killpg(group, SIGKILL)


async def run_on_consumers(brokers, arguments, output):
    """Run Spark's part in a task for each partition: a consumer, and a sink that writes the same columns."""
    spec = ConsumerSpec(
        topics=TOPIC,
        channel=CHANNEL,
        nsqd_tcp_addresses=[broker.tcp_address for broker in brokers],
        partitions=arguments.partitions,
        max_in_flight=MAX_IN_FLIGHT,
    )
    async with anyio.create_task_group() as tasks:
        for share in plan_spec(spec, named_nodes(spec)):
            sink = ParquetSink(output, to_table=flight_table, partition_by="carrier")
            tasks.start_soon(run_on_consumer, spec, share, sink)
    return True


async def run_on_consumer(spec, share, sink):
    await drain_to_handler_async(spec, share, sink.write)
    await anyio.to_thread.run_sync(sink.close)


def read_back(output):
    from pyarrow import dataset

    columns = {name: dataset.field(name) for name in ("carrier", *KEY_COLUMNS)}
    columns |= {name: dataset.field("value", name) for name in ("arr_delay", *KEY)}
    table = dataset.dataset(output, partitioning="hive").to_table(columns)
    sums = table.group_by("carrier").aggregate([([], "count_all"), ("arr_delay", "count"), ("arr_delay", "sum")])
    flights, messages = (
        Counter(table.group_by(["carrier", *key]).aggregate([])["carrier"].to_pylist()) for key in (KEY, KEY_COLUMNS)
    )
    figures = {
        row["carrier"]: Figures(row["count_all"], row["arr_delay_count"], row["arr_delay_sum"] or 0)
        for row in sums.to_pylist()
    }
    return Outcome(figures, flights.total(), messages.total())


def missing_for_spark():
    """Return a line with the requirement of Spark that is missing and how to install it; empty if nothing is."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr if java else ""
    version = re.search(r' version "(\d+)', output)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"no Java {JAVA_MIN} or newer: apt install openjdk-{JAVA_MIN}-jre-headless, or https://adoptium.net"
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "no pyspark: pip install 'nsqkit[spark]'"
    return ""


# ---- results -------------------------------------------------------------------------------------------------------


def show(outcome, source, engine):
    print(f"\n{'':9}{'flights':>19}{'mean arrival delay, minutes':>33}")
    print(f"carrier  {engine:>9}{'source':>10}{engine:>20}{'source':>13}")
    for carrier in sorted(outcome.figures.keys() | source.figures.keys()):
        ours, theirs = outcome.figures.get(carrier, Figures()), source.figures.get(carrier, Figures())
        mark = "" if ours == theirs else "   differs"
        print(
            f"{carrier:9}{ours.flights:>9,}{theirs.flights:>10,}"
            f"{ours.mean_delay:>20.4f}{theirs.mean_delay:>13.4f}{mark}"
        )
    print(f"{'all':9}{outcome.row_count:>9,}{source.count:>10,}\n")


def show_chart(samples, path):
    text = chart.draw(samples, min(shutil.get_terminal_size().columns, COLUMNS_MAX))
    encoding = sys.stdout.encoding  # may lack the dots and lines
    print(text.encode(encoding, "replace").decode(encoding))
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.save(samples, path)
    print(f"\nThe chart is in {path}")


def errors_of(outcome, source, end):
    """Yield a line for each wrong figure; ``end`` is the last sample of the brokers."""
    counts = {
        "different flights are in the source": len(source.keys),
        "messages were published": sum(end.published),
        "messages were finished": sum(end.finished),
        "rows have arrived": outcome.row_count,
        "different flights have arrived": outcome.distinct_flights,
        "different messages have arrived": outcome.distinct_messages,
    }
    for what, count in counts.items():
        if count != source.count:
            yield f"{count:,} {what}, not {source.count:,}"
    for carrier in sorted(outcome.figures.keys() | source.figures.keys()):
        if outcome.figures.get(carrier) != source.figures.get(carrier):
            yield f"{carrier}: {outcome.figures.get(carrier)}; the source has {source.figures.get(carrier)}"


async def run(arguments, work):
    start = time.monotonic()
    missing = missing_for_spark()
    if missing:
        print(f"Spark is left out, plain consumers take its place: {missing}", flush=True)
    source = Flights(arguments.rows)
    output = str(arguments.output or work / "parquet")
    samples: list[chart.Sample] = []
    async with make_broker() as first, make_broker() as second, anyio.create_task_group() as tasks:
        brokers = [first, second]
        counts = {name: partial(count, brokers, name) for name in ("published", "finished")}
        stages = {} if missing else {0: "Spark starts", source.count: "Spark writes the Parquet files"}
        progress = Progress(source.count, counts)
        tasks.start_soon(progress.run)
        tasks.start_soon(record, brokers, samples)
        await publish(source.messages(), [broker.tcp_address for broker in brokers])
        progress.stage = lambda: stages.get(counts["finished"](), "")
        if missing:
            succeeded = await run_on_consumers(brokers, arguments, output)
        else:
            succeeded = await run_on_spark(brokers, arguments, output, work)
        tasks.cancel_scope.cancel()
    if not succeeded:
        return 1
    outcome = read_back(output)
    show(outcome, source, "consumers" if missing else "Spark")
    show_chart(samples, arguments.chart)
    found = list(errors_of(outcome, source, samples[-1]))
    for error in found:
        print(f"WRONG: {error}")
    if not found:
        seconds = time.monotonic() - start
        print(f"All {outcome.row_count:,} flights arrived, none twice, every figure agrees. {seconds:.0f} seconds")
    return 1 if found else 0


def parse_arguments():
    def in_range(least, most):
        def parse(text):
            if not text.isdecimal() or not least <= int(text) <= most:
                raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
            return int(text)

        return parse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=in_range(1, COUNT), default=COUNT, help="number of flights, from the first; all")
    parser.add_argument("--partitions", type=in_range(1, 64), default=4, help="number of consuming tasks; 4")
    parser.add_argument("--output", type=Path, help="keep the Parquet files in this empty or new directory")
    parser.add_argument("--chart", type=Path, default=Path("build/demo.png"), help="file of the chart; %(default)s")
    arguments = parser.parse_args()
    if arguments.chart.suffix not in CHART_SUFFIXES:
        parser.error(f"--chart {arguments.chart} is no picture; allowed endings are {', '.join(CHART_SUFFIXES)}")
    output = arguments.output
    if output and output.exists() and not output.is_dir():
        parser.error(f"--output {output} is a file; allowed is a directory that is empty or new")
    if output and output.exists() and any(output.iterdir()):
        parser.error(f"--output {output} is not empty; allowed is a directory that is empty or new")
    return arguments


def main():
    arguments = parse_arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="nsqkit-demo-", ignore_cleanup_errors=True) as work:
            return anyio.run(run, arguments, Path(work))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
