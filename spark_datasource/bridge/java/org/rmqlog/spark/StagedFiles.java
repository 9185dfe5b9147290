package org.rmqlog.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * The files that a task leaves for the commit, as Python's {@code StagedFileWriter} makes them:
 * columns batch by batch, records in files of their own, and at the end a summary. Without a row
 * there are none, and none is left behind unless they were finished.
 */
final class StagedFiles implements Closeable {
  private final String path;
  private final StagingRecipe recipe;
  private final StagedBatch batch;
  /** Records that are not written yet. */
  private final RecordBytes unwritten;
  private FileChannel columns;
  private long columnsEnd;
  private FileChannel records;
  private int recordsNumber;
  private long recordsEnd;
  private long rowCount;
  private long recordsSize;
  private long[] queueRows = new long[0];
  private boolean isFinished;

  StagedFiles(String path, StagingRecipe recipe) {
    this.path = path;
    this.recipe = recipe;
    this.batch = new StagedBatch(recipe.pieces());
    this.unwritten = new RecordBytes(recipe.pieces().writeSize());
  }

  /** Where the next record goes; there is room for so many bytes. */
  RecordBytes room(int size) throws IOException {
    if (!unwritten.hasRoom(size)) {
      writeRecords();
      unwritten.clear(size);
    }
    return unwritten;
  }

  /** Notes a record that was put where {@link #room} said. */
  void added(int size, int queueId, boolean isBornOpen, RecordProperties properties)
      throws IOException {
    if (queueId >= queueRows.length) {
      queueRows = Arrays.copyOf(queueRows, Math.max(queueId + 1, 2 * queueRows.length));
    }
    queueRows[queueId]++;
    batch.add(size, queueId, recipe.sysFlag(), isBornOpen, properties);
    if (batch.isFull()) {
      writeBatch();
    }
  }

  /** Everything is in the files when it returns; {@code dealtRows} is for Python to go on. */
  void finish(long dealtRows) throws IOException {
    if (batch.rowCount() > 0) {
      writeBatch();
    }
    if (rowCount > 0) {
      Files.writeString(Path.of(path + ".summary"), summary(dealtRows));
    }
    isFinished = true;
  }

  @Override
  public void close() throws IOException {
    close(columns);
    close(records);
    if (!isFinished) {
      for (int number = 0; number <= recordsNumber; number++) {
        Files.deleteIfExists(recordsPath(number));
      }
      Files.deleteIfExists(Path.of(path));
    }
  }

  private void writeBatch() throws IOException {
    writeRecords();
    if (columns == null) {
      columns = create(Path.of(path));
    }
    for (ByteBuffer part : batch.content(recipe.topic())) {
      columnsEnd = write(columns, Path.of(path), part, columnsEnd);
    }
    rowCount += batch.rowCount();
    recordsSize += batch.size();
    batch.clear();
    if (recordsEnd >= recipe.pieces().fileSize()) {
      close(records);
      records = null;
      recordsNumber++;
      recordsEnd = 0;
    }
  }

  private void writeRecords() throws IOException {
    if (records == null) {
      records = create(recordsPath(recordsNumber));
    }
    recordsEnd = write(records, recordsPath(recordsNumber), unwritten.content(), recordsEnd);
    unwritten.clear(0);
  }

  private String summary(long dealtRows) {
    ObjectNode summary = JsonNodeFactory.instance.objectNode();
    summary.put("rowCount", rowCount).put("recordsSize", recordsSize).put("dealtRows", dealtRows);
    ArrayNode counts = summary.putArray("counts");
    for (int queueId = 0; queueId < queueRows.length; queueId++) {
      if (queueRows[queueId] > 0) {
        counts.addArray().add(queueId).add(queueRows[queueId]);
      }
    }
    return summary.toString();
  }

  private Path recordsPath(int number) {
    return Path.of(path + "." + number);
  }

  /** A new file: what another attempt has left is never written to. */
  private static FileChannel create(Path path) throws IOException {
    return FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
  }

  private static void close(FileChannel file) throws IOException {
    if (file != null) {
      file.close();
    }
  }

  /** Writes all of a buffer; where it ends in the file. */
  private static long write(FileChannel file, Path path, ByteBuffer data, long position)
      throws IOException {
    long end = position;
    try {
      while (data.hasRemaining()) {
        end += file.write(data, end);
      }
    } catch (ClosedByInterruptException killed) {
      throw killed;
    } catch (IOException failed) {
      throw new IOException(
          path + " at offset " + end + ": write failed: " + failed.getMessage(), failed);
    }
    return end;
  }
}
