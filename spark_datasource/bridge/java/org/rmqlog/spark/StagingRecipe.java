package org.rmqlog.spark;

import java.util.Optional;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * What Python says when it has planned a write of plain rows: the bytes that all records share,
 * where the others go, and what a row must keep to. The contract is in README.md beside the jar.
 *
 * @param folder where the tasks of the job leave their files
 * @param topic the topic of all rows
 * @param queueCount the queues that rows without one are dealt out to, in turn
 * @param sysFlag SYSFLAG of all records
 * @param header the fixed part of a record, complete but for what {@code positions} name
 * @param topicField the topic with its length in front
 * @param positions where fields of the header are
 * @param columns which column of the frame is what; -1 where there is none
 * @param prefixes what stands in front of the values of properties
 * @param limits sizes that a row must not exceed
 * @param index what is hashed for the index
 * @param uniqKeys what unique keys begin with
 * @param pieces how much is written at once
 */
record StagingRecipe(
    String folder, String topic, int queueCount, int sysFlag, byte[] header, byte[] topicField,
    Positions positions, Columns columns, Prefixes prefixes, Limits limits, Index index,
    UniqKeys uniqKeys, Pieces pieces) {

  record Positions(
      int totalSize, int bodyCrc, int queueId, int flag, int bornTimestamp, int bodySize) {}

  record Columns(
      int body, int keys, int tags, int uniqKey, int queueId, int flag, int bornTimestamp) {}

  record Prefixes(byte[] keys, byte[] tags, byte[] uniqKey, byte end) {}

  record Limits(int body, int properties, int record, int queueId) {}

  /**
   * @param keyPrefix stands in front of each key that is hashed
   * @param tagPrefix likewise of a tag; null where tags have no entries
   */
  record Index(String keyPrefix, String tagPrefix) {}

  record UniqKeys(String address, long monthStartMs) {}

  record Pieces(int batchRows, int batchSize, int fileSize, int writeSize) {}

  private static final ObjectMapper JSON = new ObjectMapper();

  static StagingRecipe of(String json) {
    try {
      return JSON.readValue(json, StagingRecipe.class);
    } catch (JsonProcessingException malformed) {
      throw new IllegalArgumentException("Python's recipe for records cannot be read", malformed);
    }
  }

  /** The recipe as JSON in a pickled writer; nothing where Python is to make the records. */
  static Optional<String> find(byte[] pickled) {
    return PickledText.find(pickled, "rmqlog-recipe");
  }
}
