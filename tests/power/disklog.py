# SPDX-License-Identifier: Apache-2.0
"""The log of powerdisk (disk.c), and the disks that a power failure at any moment of it can leave.

Each disk keeps what was written before its last flush. Of what came later it keeps any sectors, in any order.
Sectors of 4 KiB are written whole or not at all, as drives with such sectors promise."""

import bisect
import collections
import json
import os
import random
import struct

RECORD = struct.Struct("<6I")
MAGIC = 0x50575244
WRITE, FLUSH, MARK = 1, 2, 3
SECTOR = 4096


class Log:
    """records: (kind, offset, place in the file, length). A mark is (MARK, its value, 0, 0)."""

    def __init__(self, path):
        self.file = open(path, "rb")
        self.records, self.flushes = [], []
        end = os.fstat(self.file.fileno()).st_size
        at = 0
        while at + RECORD.size <= end:
            magic, kind, low, high, length, number = RECORD.unpack(os.pread(self.file.fileno(), RECORD.size, at))
            at += RECORD.size
            if magic != MAGIC or number != len(self.records) or at + length > end:
                raise ValueError("%s: record %d is damaged" % (path, len(self.records)))
            if kind == MARK:
                self.records.append((MARK, json.loads(os.pread(self.file.fileno(), length, at)), 0, 0))
            else:
                if kind == FLUSH:
                    self.flushes.append(number)
                self.records.append((kind, low | high << 32, at, length))
            at += length

    def close(self):
        self.file.close()

    def write(self, record, image, share=None):
        """Carries a write out on a descriptor; with a share (chance, generator), some of its sectors."""
        _, off, at, length = record
        data = os.pread(self.file.fileno(), length, at)
        if share is None:
            os.pwrite(image, data, off)
            return
        chance, rng = share
        for piece in range(0, length, SECTOR):
            if rng.random() < chance:
                os.pwrite(image, data[piece : piece + SECTOR], off + piece)

    def end_of(self, flush):
        """The record that ends the time in which this flush is the last one."""
        at = bisect.bisect_right(self.flushes, flush)
        return self.flushes[at] if at < len(self.flushes) else len(self.records)

    def moments(self, begin):
        """Flushes from a record on, without those that follow another one with nothing between."""
        out, fresh = [], True
        for number in range(begin, len(self.records)):
            if self.records[number][0] != FLUSH:
                fresh = True
            elif fresh:
                out.append(number)
                fresh = False
        return out

    def points(self, begin, count, seed):
        """Up to count points (flush, record of the failure, seed or None), in the order of the log.

        Without a seed each disk loses what it was not told to flush, and the failure comes right before the
        next flush of any disk: what is promised meanwhile must not rest on what is lost. With a seed
        some sectors of what was written after the last flush of a disk are there."""
        rng = random.Random(seed)
        moments = self.moments(begin)
        plain = moments if len(moments) <= count // 2 else sorted(rng.sample(moments, (count + 1) // 2))
        out = [(flush, self.end_of(flush), None) for flush in plain]
        busy = [f for f in moments if any(r[0] == WRITE for r in self.records[f : self.end_of(f)])]
        while busy and len(out) < count:
            flush = rng.choice(busy)
            out.append((flush, rng.randint(flush + 1, self.end_of(flush)), rng.randrange(1 << 32)))
        return sorted(out, key=lambda p: p[:2])


class Replay:
    """An image that goes through the log, from flush to flush."""

    def __init__(self, log, image, part):
        """part: the size of each disk."""
        self.log, self.image, self.part, self.at = log, image, part, 0
        self.late = collections.defaultdict(list)  # disk -> writes that it was not told to flush

    def advance(self, flush):
        """Everything is there that was flushed until this flush, it included."""
        fd = os.open(self.image, os.O_RDWR)
        while self.at <= flush:
            record = self.log.records[self.at]
            if record[0] == WRITE:
                self.late[record[1] // self.part].append(record)
            elif record[0] == FLUSH:
                for late in self.late.pop(record[1] // self.part, ()):
                    self.log.write(late, fd)
            self.at += 1
        os.close(fd)

    def copy(self, path):
        """Holes stay holes."""
        source = os.open(self.image, os.O_RDONLY)
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        size, at = os.fstat(source).st_size, 0
        os.truncate(target, size)
        while at < size:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(source, at, os.SEEK_HOLE)
            while at < end:
                at += os.pwrite(target, os.pread(source, min(end - at, 1 << 20), at), at)
        os.close(source)
        return target

    def make(self, point, path):
        """The disk that the failure leaves."""
        flush, failure, seed = point
        self.advance(flush)
        target = self.copy(path)
        if seed is not None:
            rng = random.Random(seed)
            chance = rng.choice((0.1, 0.5, 0.9, 1.0))
            late = [r for of in self.late.values() for r in of]
            for record in late + self.log.records[flush:failure]:
                if record[0] == WRITE:
                    self.log.write(record, target, (chance, rng))
        os.close(target)
