// A program that uses nsqjs as it comes from npm; test_clients.py says what it is told and what it prints.

'use strict';

const fs = require('fs');
const nsq = require('nsqjs');

const [role, text] = process.argv.slice(2);
const settings = JSON.parse(text);

const DEEDS = ['requeue', 'requeue-later', 'timeout', 'touch'];

function say(value) {
  console.log(JSON.stringify(value));
}

function connectionOptions() {
  const options = {
    deflate: settings.compression === 'deflate',
    snappy: settings.compression === 'snappy',
    authSecret: settings.secret || null,
    messageTimeout: settings.msg_timeout ? 1000 * settings.msg_timeout : null,
  };
  if (!settings.tls) return options;
  const { ca_certs, certfile, keyfile } = settings.tls;
  const read = (path) => (path ? fs.readFileSync(path) : null);
  return { ...options, tls: true, ca: read(ca_certs), cert: read(certfile), key: read(keyfile) };
}

function publish() {
  const [host, port] = settings.nsqd.split(':');
  const writer = new nsq.Writer(host, Number(port), connectionOptions());
  const answered = (command, next) => (error) => {
    say({ command, answer: error ? error.message : 'OK' });
    next();
  };
  const pub = () => writer.publish(settings.topic, 'one', answered('PUB', mpub));
  const mpub = () => writer.publish(settings.topic, ['two', 'three'], answered('MPUB', dpub));
  const dpub = () => writer.deferPublish(settings.topic, ['later'], 1, answered('DPUB', () => {}));
  // A writer does not connect again by itself, and `ready` comes again on another connection.
  writer.on('error', (error) => {
    console.error(error);
    setTimeout(() => writer.connect(), 1000);
  });
  writer.once('ready', pub);
  writer.connect();
}

function consume() {
  const reader = new nsq.Reader(settings.topic, settings.channel, {
    nsqdTCPAddresses: settings.nsqd || [],
    lookupdHTTPAddresses: settings.lookupd || [],
    lookupdPollInterval: 1,
    maxInFlight: 3,
    ...connectionOptions(),
  });
  reader.on('error', console.error);
  reader.on('message', handle);
  reader.connect();
}

function handle(message) {
  const body = message.body.toString();
  say({ body, attempts: message.attempts });
  if (message.attempts > 1 || !DEEDS.includes(body)) {
    message.finish();
  } else if (body === 'requeue') {
    message.requeue(0, false);
  } else if (body === 'requeue-later') {
    message.requeue(100, false);
  } else if (body === 'touch') {
    for (const ms of [300, 600, 900, 1200]) setTimeout(() => message.touch(), ms);
    setTimeout(() => message.finish(), 1500);
  }
}

({ publish, consume })[role]();
