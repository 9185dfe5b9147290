package org.rmqlog.spark;

import java.io.IOException;
import java.util.zip.CRC32;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;

/**
 * Makes records of plain rows, as Python's staging does. A row is plain when it keeps to every
 * rule of the format: of any other one Python says what is wrong with it.
 */
final class RecordEncoder {
  private static final int CRC_MASK = 0x7FFFFFFF;
  private static final int MICROSECONDS_A_MILLISECOND = 1000;

  private final StagingRecipe recipe;
  private final StagingRecipe.Limits limits;
  private final StagingRecipe.Positions positions;
  private final StagedFiles files;
  private final RowBytes row;
  private final RecordProperties properties;
  private final int body;
  private final WholeNumbers queueIds;
  private final WholeNumbers flags;
  private final WholeNumbers bornTimes;
  private final long bornTimeUnit;
  private final CRC32 crc = new CRC32();
  /** The queue of the next row that names none. */
  private int turn;
  private long dealtRows;

  RecordEncoder(StagingRecipe recipe, StructType schema, StagedFiles files, int partition) {
    StagingRecipe.Columns columns = recipe.columns();
    this.recipe = recipe;
    this.limits = recipe.limits();
    this.positions = recipe.positions();
    this.files = files;
    this.row = new RowBytes(schema);
    this.properties = new RecordProperties(recipe);
    this.body = columns.body();
    this.queueIds = new WholeNumbers(schema, columns.queueId());
    this.flags = new WholeNumbers(schema, columns.flag());
    this.bornTimes = new WholeNumbers(schema, columns.bornTimestamp());
    this.bornTimeUnit = bornTimes.type() instanceof TimestampType ? MICROSECONDS_A_MILLISECOND : 1;
    this.turn = partition % recipe.queueCount();
  }

  /** Rows so far that were dealt out to the queues in turn. */
  long dealtRows() {
    return dealtRows;
  }

  /** Adds a row's record, or changes nothing and says that the row is not plain. */
  boolean add(InternalRow given) throws IOException {
    row.set(given);
    boolean isDealt = row.isAbsent(queueIds.column());
    boolean isBornOpen = row.isAbsent(bornTimes.column());
    long queueId = isDealt ? turn : queueIds.get(row);
    long flag = row.isAbsent(flags.column()) ? 0 : flags.get(row);
    long bornTime = isBornOpen ? 0 : bornTimes.get(row) / bornTimeUnit;
    if (row.isAbsent(body)
        || row.size(body) > limits.body()
        || queueId < 0
        || queueId > limits.queueId()
        || flag != (int) flag
        || bornTime == Long.MIN_VALUE
        || !properties.read(row)) {
      return false;
    }
    long size = (long) recipe.header().length + row.size(body) + recipe.topicField().length
        + Short.BYTES + properties.size();
    if (size > limits.record()) {
      return false;
    }
    RecordBytes target = files.room((int) size);
    int start = target.end();
    target.put(recipe.header());
    target.setInt(start + positions.totalSize(), (int) size);
    target.setInt(start + positions.bodyCrc(), bodyCrc());
    target.setInt(start + positions.queueId(), (int) queueId);
    target.setInt(start + positions.flag(), (int) flag);
    target.setLong(start + positions.bornTimestamp(), bornTime);
    target.setInt(start + positions.bodySize(), row.size(body));
    target.put(row.bytes(), row.start(body), row.size(body));
    target.put(recipe.topicField());
    target.putShort((short) properties.size());
    properties.putInto(target);
    files.added((int) size, (int) queueId, isBornOpen, properties);
    if (isDealt) {
      turn = turn + 1 == recipe.queueCount() ? 0 : turn + 1;
      dealtRows++;
    }
    return true;
  }

  private int bodyCrc() {
    crc.reset();
    crc.update(row.bytes(), row.start(body), row.size(body));
    return (int) crc.getValue() & CRC_MASK;
  }
}
