package org.rmqlog.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.zip.CRC32;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;

/** What the commit must know of some records: the columns of one batch of a staged file. */
final class StagedBatch {
  private static final byte[] MAGIC = "rmq1".getBytes(StandardCharsets.US_ASCII);
  private static final int PREFIX_SIZE = 28;
  private static final int ROW_SIZE = 26;
  private static final int USUAL_HASHES = 4;
  private static final byte NOT_DELAYED = 0;

  private final int rowLimit;
  private final long sizeLimit;
  private final ByteBuffer rows;
  private ByteBuffer hashes;
  private int rowCount;
  private int hashCount;
  private long size;
  /** The place of each queue among those of the batch, or -1. */
  private int[] codes = new int[0];
  private int[] queueIds = new int[16];
  private int queueCount;

  StagedBatch(StagingRecipe.Pieces pieces) {
    this.rowLimit = pieces.batchRows();
    this.sizeLimit = pieces.batchSize();
    this.rows = littleEndian(ROW_SIZE * rowLimit);
    this.hashes = littleEndian(USUAL_HASHES * Integer.BYTES * rowLimit);
  }

  int rowCount() {
    return rowCount;
  }

  /** Bytes of its records. */
  long size() {
    return size;
  }

  boolean isFull() {
    return rowCount == rowLimit || size >= sizeLimit;
  }

  void add(int recordSize, int queueId, int sysFlag, boolean isBornOpen, RecordProperties of) {
    int count = of.hashCount();
    rows.putInt(recordSize).putInt(codeOf(queueId)).putInt(sysFlag).putInt(count);
    rows.putLong(of.tagsCode()).put(NOT_DELAYED).put((byte) (isBornOpen ? 1 : 0));
    if (hashes.remaining() < count * Integer.BYTES) {
      hashes = littleEndian(2 * (hashes.capacity() + count * Integer.BYTES)).put(hashes.flip());
    }
    for (int number = 0; number < count; number++) {
      hashes.putInt(of.hash(number));
    }
    hashCount += count;
    rowCount++;
    size += recordSize;
  }

  /** The bytes of the batch, whose queues are all of one topic. */
  ByteBuffer[] content(String topic) {
    ByteBuffer names = ByteBuffer.wrap(queueNames(topic).getBytes(StandardCharsets.US_ASCII));
    ByteBuffer[] parts = {littleEndian(PREFIX_SIZE), names, rows.flip(), hashes.flip()};
    CRC32 crc = new CRC32();
    for (ByteBuffer part : Arrays.asList(parts).subList(1, parts.length)) {
      crc.update(part.duplicate());
    }
    parts[0].put(MAGIC).putInt(names.remaining()).putInt(rowCount).putInt(hashCount);
    parts[0].putLong(size).putInt((int) crc.getValue()).flip();
    return parts;
  }

  void clear() {
    rows.clear();
    hashes.clear();
    rowCount = 0;
    hashCount = 0;
    size = 0;
    for (int code = 0; code < queueCount; code++) {
      codes[queueIds[code]] = -1;
    }
    queueCount = 0;
  }

  private int codeOf(int queueId) {
    if (queueId >= codes.length) {
      int known = codes.length;
      codes = Arrays.copyOf(codes, Math.max(queueId + 1, 2 * known));
      Arrays.fill(codes, known, codes.length, -1);
    }
    if (codes[queueId] < 0) {
      if (queueCount == queueIds.length) {
        queueIds = Arrays.copyOf(queueIds, 2 * queueCount);
      }
      codes[queueId] = queueCount;
      queueIds[queueCount++] = queueId;
    }
    return codes[queueId];
  }

  private String queueNames(String topic) {
    ArrayNode names = JsonNodeFactory.instance.arrayNode();
    for (int code = 0; code < queueCount; code++) {
      names.addArray().add(topic).add(queueIds[code]);
    }
    return names.toString();
  }

  private static ByteBuffer littleEndian(int capacity) {
    return ByteBuffer.allocate(capacity).order(ByteOrder.LITTLE_ENDIAN);
  }
}
